// Counts ages on, and says when the connection is lost. The page says everything without it, too.
(function () {
  "use strict";

  var live = document.querySelector("[data-now-ms]");
  if (!live) return;
  var ahead = Date.now() - Number(live.dataset.nowMs); // the clock of the browser may differ from the server's

  function duration(ms) {
    if (ms < 1000) return Math.round(ms) + " ms";
    var seconds = Math.floor(ms / 1000);
    if (seconds < 60) return seconds + " s";
    var minutes = Math.floor(seconds / 60);
    if (minutes < 60) return minutes + " min " + (seconds % 60) + " s";
    var hours = Math.floor(minutes / 60);
    return hours < 48 ? hours + " h " + (minutes % 60) + " min" : Math.floor(hours / 24) + " d " + (hours % 24) + " h";
  }

  function count() {
    var now = Date.now() - ahead;
    document.querySelectorAll("[data-since-ms]").forEach(function (shown) {
      shown.textContent = duration(Math.max(0, now - Number(shown.dataset.sinceMs)));
    });
  }

  setInterval(count, 1000);
  document.body.addEventListener("htmx:sseError", function () { document.getElementById("offline").hidden = false; });
  document.body.addEventListener("htmx:sseOpen", function () { document.getElementById("offline").hidden = true; });
})();
