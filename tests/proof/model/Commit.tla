------------------------------- MODULE Commit -------------------------------
(***************************************************************************)
(* The commit protocol, to be read beside commit_coord/protocol/commit.py. *)
(*                                                                         *)
(* Every writer has one append. All of them want the latch of one table,   *)
(* a queue that a lock service keeps. Whoever stands first holds it, reads *)
(* the table, may take what those right behind it offer, and publishes     *)
(* its own append and theirs with one swap. Between any two steps of a     *)
(* writer anything may happen: it is paused (the others go on), it dies,   *)
(* its lease runs out, an answer is lost, a request that nobody waits for  *)
(* any more is carried out.                                                *)
(*                                                                         *)
(* A metadata file is modelled as <<writer, try, appends>>, and the table  *)
(* as its metadata log: the files from the first one to the head. So two   *)
(* logs are equal exactly when their heads are.                            *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Writers,      \* Who commits.
    MaxFaults,    \* Deaths, expiries of the living, lost answers, timeouts, failed writes: so many in all.
    MaxTries,     \* Limits.swaps: swaps that may find the pointer moved.
    Telling,      \* Whether "told" says what happened, for the pictures.
    \* What the services do.
    Cas,          \* The server compares before it sets.
    Prompt,       \* What a server without it needs: a swap arrives within the lease, or never.
    Locking,      \* There is a lock manager (other than "none").
    Groups,       \* Waiting writers offer their appends.
    \* The guards. All TRUE is the protocol; each variant takes one away.
    Expires,      \* A lease ends by itself.
    EnsureActive, \* The lock service is asked right before the swap.
    OwnRelease,   \* A release removes the writer's own request, and no other one.
    BaseInLatch,  \* The table is read under the latch.
    OneRead,      \* The swap compares with what the new metadata was built on, not with what is there by now.
    LostIsUnknown,   \* A lost answer proves nothing.
    BaseIsUnknown,   \* Nor does a look that finds the pointer where it was.
    MovedIsUnknown,  \* Nor does "moved", when the swap was sent before.
    LookForOwn,   \* An append that is in the table already is not added again.
    Retract       \* A failure is said only by whoever could take its offer back.

VARIABLES
    log,        \* The table: its metadata log.
    flying,     \* Swaps that were sent and not carried out yet: records of from, base, file, copy.
    queue,      \* The latch: records of who, and offer: "none", "open", the writer that took it, or "stale".
    journal,    \* Writers whose append a holder has settled as done.
    pc,         \* Where each writer is.
    base,       \* What it read.
    carried,    \* The appends that it took.
    tries,      \* Swaps that it planned.
    copy,       \* How often it sent the present one.
    answer,     \* What the server said to the last one: "none", "swapped" or "moved".
    doubt,      \* Somebody else may have its append in hand.
    verdict,    \* What it will say: "none", "success", "failure" or "unknown".
    faults,     \* Left to happen.
    told        \* The last step in words: from, to, what. No part of the state (see View).

service == <<log, flying, queue, journal>>
writer == <<pc, base, carried, tries, copy, answer, doubt, verdict>>
View == <<service, writer, faults>>
vars == <<service, writer, faults, told>>

-----------------------------------------------------------------------------

Say(from, to, what) == told' = IF Telling THEN <<from, to, what>> ELSE <<>>

Last(seq) == seq[Len(seq)]
Places(w) == {i \in 1..Len(queue) : queue[i].who = w}
Queued(w) == Places(w) # {}
Place(w) == CHOOSE i \in Places(w) : TRUE
Holds(w) == IF Locking THEN Len(queue) > 0 /\ queue[1].who = w ELSE TRUE
Without(w) == SelectSeq(queue, LAMBDA request : request.who # w)
Offered(w) == IF Queued(w) THEN queue[Place(w)].offer ELSE "gone"

\* The appends of a log, one for each time that they are in it.
Adds(w, files) == {<<i, j>> \in (1..Len(files)) \X (1..Cardinality(Writers)) :
                        j <= Len(files[i][3]) /\ files[i][3][j] = w}
In(w, files) == Adds(w, files) # {}

File(w) == <<w, tries[w], <<w>> \o SelectSeq(carried[w], LAMBDA m : ~(LookForOwn /\ In(m, base[w])))>>
Landed(w) == \E i \in 1..Len(log) : log[i] = File(w)
IsPrefix(short, long) == Len(short) <= Len(long) /\ SubSeq(long, 1, Len(short)) = short

Fault == faults > 0 /\ faults' = faults - 1
Goes(w, where) == pc' = [pc EXCEPT ![w] = where]
Ends(w, what) == /\ verdict' = [verdict EXCEPT ![w] = what]
                 /\ Goes(w, "leaving")
\* Every swap of this writer is proven not to have landed. It fails, unless somebody else has its append.
Fails(w) == Ends(w, IF Retract /\ doubt[w] THEN "unknown" ELSE "failure")

Init ==
    /\ log = <<>> /\ flying = {} /\ queue = <<>> /\ journal = {}
    /\ pc = [w \in Writers |-> "idle"]
    /\ base = [w \in Writers |-> <<>>]
    /\ carried = [w \in Writers |-> <<>>]
    /\ tries = [w \in Writers |-> 0]
    /\ copy = [w \in Writers |-> 0]
    /\ answer = [w \in Writers |-> "none"]
    /\ doubt = [w \in Writers |-> FALSE]
    /\ verdict = [w \in Writers |-> "none"]
    /\ faults = MaxFaults
    /\ told = <<>>

-----------------------------------------------------------------------------
(* Acquire *)

Inside == IF Groups THEN "holding" ELSE "planning"

Enter(w) ==
    /\ pc[w] = "idle"
    /\ IF Locking
       THEN /\ queue' = Append(queue, [who |-> w, offer |-> IF Groups /\ ~doubt[w] THEN "open" ELSE "none"])
            /\ Goes(w, "waiting")
            /\ Say(w, "locks", IF doubt[w] THEN "asks again, and offers nothing" ELSE "asks for the latch")
       ELSE /\ UNCHANGED queue
            /\ Goes(w, Inside)
            /\ Say(w, w, "commits without any lock")
    /\ base' = IF BaseInLatch THEN base ELSE [base EXCEPT ![w] = log]  \* too early, in one variant
    /\ UNCHANGED <<log, flying, journal, carried, tries, copy, answer, doubt, verdict, faults>>

Granted(w) ==
    /\ pc[w] = "waiting" /\ Holds(w)
    /\ Goes(w, Inside)
    /\ Say("locks", w, "grants the latch")
    /\ UNCHANGED <<service, base, carried, tries, copy, answer, doubt, verdict, faults>>

\* The request is gone. The journal says whether a holder has carried it out; else the writer stands in line again,
\* and if it had offered something, it no longer knows what becomes of that.
Gone(w) ==
    /\ pc[w] = "waiting" /\ ~Queued(w)
    /\ IF w \in journal
       THEN /\ verdict' = [verdict EXCEPT ![w] = "success"]
            /\ Goes(w, "done")
            /\ Say("locks", w, "says that a holder carried it along: SUCCESS")
            /\ UNCHANGED doubt
       ELSE /\ doubt' = [doubt EXCEPT ![w] = doubt[w] \/ Groups]
            /\ Goes(w, "idle")
            /\ Say("locks", w, "knows its request no more")
            /\ UNCHANGED verdict
    /\ UNCHANGED <<service, base, carried, tries, copy, answer, faults>>

\* The deadline passes. What was offered and not taken is taken back; what was taken is asked for once more.
TimeOut(w) ==
    /\ pc[w] = "waiting" /\ Queued(w) /\ ~Holds(w) /\ Fault
    /\ queue' = Without(w)
    /\ IF Retract /\ Offered(w) \notin {"none", "open"}
       THEN /\ doubt' = [doubt EXCEPT ![w] = TRUE]
            /\ Goes(w, "idle")
            /\ Say(w, "locks", "the deadline is over and somebody has its offer: withdraws")
            /\ UNCHANGED verdict
       ELSE /\ verdict' = [verdict EXCEPT ![w] = IF doubt[w] /\ Retract THEN "unknown" ELSE "failure"]
            /\ Goes(w, "done")
            /\ Say(w, "locks", "the deadline is over: " \o (IF doubt[w] /\ Retract THEN "UNKNOWN" ELSE "FAILURE"))
            /\ UNCHANGED doubt
    /\ UNCHANGED <<log, flying, journal, base, carried, tries, copy, answer>>

-----------------------------------------------------------------------------
(* Retract: withdraw the own offer. *)

TakeBack(w) ==
    /\ pc[w] = "holding"
    /\ queue' = [i \in 1..Len(queue) |-> IF queue[i].who = w /\ queue[i].offer = "open"
                                          THEN [queue[i] EXCEPT !.offer = "none"] ELSE queue[i]]
    /\ doubt' = [doubt EXCEPT ![w] = doubt[w] \/ Offered(w) \notin {"none", "open"}]
    /\ Goes(w, "planning")
    /\ Say(w, "locks", IF Offered(w) \in {"none", "open"} THEN "takes its own offer back"
                                                         ELSE "finds its own offer taken")
    /\ UNCHANGED <<log, flying, journal, base, carried, tries, copy, answer, verdict, faults>>

-----------------------------------------------------------------------------
(* Plan *)

Plan(w) ==
    /\ pc[w] = "planning"
    /\ IF BaseInLatch THEN base' = [base EXCEPT ![w] = log] ELSE UNCHANGED base
    /\ IF LookForOwn /\ In(w, base'[w])
       THEN /\ Ends(w, "success")
            /\ carried' = [carried EXCEPT ![w] = <<>>]
            /\ Say(w, "table", "reads the table: its append is there already")
            /\ UNCHANGED <<tries, copy>>
       ELSE /\ Goes(w, IF Groups /\ carried[w] = <<>> THEN "planned" ELSE "ready")
            /\ tries' = [tries EXCEPT ![w] = tries[w] + 1]
            /\ copy' = [copy EXCEPT ![w] = 0]
            /\ Say(w, "table", IF BaseInLatch THEN "reads the table and builds on it"
                                              ELSE "builds on what it read before")
            /\ UNCHANGED <<carried, verdict>>
    /\ UNCHANGED <<service, answer, doubt, faults>>

-----------------------------------------------------------------------------
(* Gather: take what those right behind offer. *)

Open(w) ==  \* The longest row of open offers behind w.
    LET behind == SubSeq(queue, Place(w) + 1, Len(queue))
        n == CHOOSE k \in 0..Len(behind) :
                /\ \A i \in 1..k : behind[i].offer = "open"
                /\ k < Len(behind) => behind[k + 1].offer # "open"
    IN SubSeq(behind, 1, n)

Gather(w) ==
    /\ pc[w] = "planned"
    /\ IF Locking /\ Queued(w)
       THEN LET mine == Open(w)
                names == {mine[i].who : i \in 1..Len(mine)}
            IN /\ queue' = [i \in 1..Len(queue) |->
                        IF queue[i].who \in names THEN [queue[i] EXCEPT !.offer = w] ELSE queue[i]]
               \* An answer that is lost leaves what was taken with its owners.
               /\ \/ /\ carried' = [carried EXCEPT ![w] = [i \in 1..Len(mine) |-> mine[i].who]]
                     /\ Say(w, "locks", IF mine = <<>> THEN "finds no offers" ELSE "takes the offers behind it")
                     /\ UNCHANGED faults
                  \/ /\ mine # <<>> /\ Fault
                     /\ UNCHANGED carried
                     /\ Say(w, "locks", "takes the offers behind it, and never learns of it")
       ELSE UNCHANGED <<queue, carried, faults>> /\ Say(w, "locks", "finds no offers")
    /\ Goes(w, "ready")
    /\ UNCHANGED <<log, flying, journal, base, tries, copy, answer, doubt, verdict>>

-----------------------------------------------------------------------------
(* Write, EnsureActive *)

WriteFails(w) ==  \* A full disk, a read-only warehouse.
    /\ pc[w] = "ready" /\ Fault
    /\ Fails(w)
    /\ Say(w, w, "can't write its files")
    /\ UNCHANGED <<service, base, carried, tries, copy, answer, doubt>>

\* A latch that was lost is taken again, and everything begins anew (Limits.latches: MaxFaults bounds it here). What was
\* taken under it stays taken, by a lease that nobody has any more.
Ensure(w) ==
    /\ pc[w] = "ready"
    /\ IF EnsureActive /\ ~Holds(w)
       THEN /\ Goes(w, "idle")
            /\ queue' = [i \in 1..Len(queue) |-> IF queue[i].offer = w THEN [queue[i] EXCEPT !.offer = "stale"]
                                                                      ELSE queue[i]]
            /\ carried' = [carried EXCEPT ![w] = <<>>]
            /\ Say(w, "locks", "makes sure of its lease: it is gone")
       ELSE /\ Goes(w, "sure") /\ UNCHANGED <<queue, carried>>
            /\ Say(w, IF EnsureActive THEN "locks" ELSE w,
                   IF EnsureActive THEN "makes sure of its lease" ELSE "does not ask whether its lease is still there")
    /\ UNCHANGED <<log, flying, journal, base, tries, copy, answer, doubt, verdict, faults>>

-----------------------------------------------------------------------------
(* Swap *)

Send(w) ==
    /\ flying' = flying \cup {[from |-> w, base |-> IF OneRead THEN base[w] ELSE log, builds |-> base[w],
                               file |-> File(w), copy |-> copy[w] + 1]}
    /\ copy' = [copy EXCEPT ![w] = copy[w] + 1]
    /\ answer' = [answer EXCEPT ![w] = "none"]
    /\ Goes(w, "sent")

Swap(w) ==
    /\ pc[w] = "sure"
    /\ Send(w)
    /\ Say(w, "table", "sends its swap")
    /\ UNCHANGED <<log, queue, journal, base, carried, tries, doubt, verdict, faults>>

\* The server carries a swap out, now or long after its sender gave up.
Perform(m) ==
    LET awaited == pc[m.from] = "sent" /\ m.file = File(m.from) /\ m.copy = copy[m.from]
        sets == ~Cas \/ m.base = log
    IN /\ Prompt => awaited
       /\ flying' = flying \ {m}
       /\ IF sets THEN log' = Append(m.builds, m.file) ELSE UNCHANGED log
       /\ answer' = IF awaited THEN [answer EXCEPT ![m.from] = IF sets THEN "swapped" ELSE "moved"] ELSE answer
       /\ Say("table", "table", "carries out the swap of " \o ToString(m.from) \o
                    (IF ~sets THEN ": the pointer has moved, nothing is done"
                     ELSE IF log # m.builds THEN ", over another head" ELSE ""))
       /\ UNCHANGED <<queue, journal, pc, base, carried, tries, copy, doubt, verdict, faults>>

NotSwapped(w) ==  \* This swap has not landed and never will: plan again on the new head.
    IF tries[w] < MaxTries THEN Goes(w, "planning") /\ UNCHANGED verdict ELSE Fails(w)

Receive(w) ==
    /\ pc[w] = "sent" /\ answer[w] # "none"
    /\ CASE answer[w] = "swapped" -> Ends(w, "success") /\ Say("table", w, "answers: swapped")
         [] answer[w] = "moved" /\ (copy[w] = 1 \/ ~MovedIsUnknown) ->
                NotSwapped(w) /\ Say("table", w, "answers: the pointer has moved")
         [] OTHER -> \* Perhaps moved by its own first try.
                /\ Goes(w, "doubtful") /\ UNCHANGED verdict
                /\ Say("table", w, "answers: the pointer has moved")
    /\ answer' = [answer EXCEPT ![w] = "none"]
    /\ UNCHANGED <<service, base, carried, tries, copy, doubt, faults>>

LoseAnswer(w) ==  \* The swap may have been carried out, or may be at any time.
    /\ pc[w] = "sent" /\ Fault
    /\ IF LostIsUnknown THEN Goes(w, "doubtful") /\ UNCHANGED verdict ELSE Fails(w)
    /\ answer' = [answer EXCEPT ![w] = "none"]
    /\ Say(w, w, IF LostIsUnknown THEN "gets no answer" ELSE "gets no answer, and takes that for a failure")
    /\ UNCHANGED <<service, base, carried, tries, copy, doubt>>

-----------------------------------------------------------------------------
(* Locate, and repeat the identical swap *)

Locate(w) ==
    /\ pc[w] = "doubtful"
    /\ CASE Landed(w) ->
                /\ Ends(w, "success") /\ UNCHANGED <<flying, copy, answer>>
                /\ Say(w, "table", "looks at the table: the swap has landed")
         [] ~Landed(w) /\ log = base[w] /\ ~BaseIsUnknown ->
                /\ Fails(w) /\ UNCHANGED <<flying, copy, answer>>
                /\ Say(w, "table", "sees the old head, and takes that for a failure")
         [] ~Landed(w) /\ log = base[w] /\ BaseIsUnknown /\ copy[w] < 2 /\ (Cas \/ ~EnsureActive \/ Holds(w)) ->
                /\ Send(w) /\ UNCHANGED verdict
                /\ Say(w, "table", "sees the old head, and sends the same swap again")
         [] ~Landed(w) /\ log # base[w] /\ IsPrefix(base[w], log) ->
                /\ NotSwapped(w) /\ UNCHANGED <<flying, copy, answer>>
                /\ Say(w, "table", "looks at the table: it went on without the swap")
         [] OTHER ->
                /\ Ends(w, "unknown") /\ UNCHANGED <<flying, copy, answer>>
                /\ Say(w, "table", "can't find out")
    /\ UNCHANGED <<log, queue, journal, base, carried, tries, doubt, faults>>

-----------------------------------------------------------------------------
(* Release: settle what was taken, remove the own request. *)

Done(w) == IF verdict[w] = "success" THEN {carried[w][i] : i \in 1..Len(carried[w])} ELSE {}

Released(w) ==
    LET left == IF OwnRelease THEN Without(w) ELSE IF queue = <<>> THEN <<>> ELSE Tail(queue)
        stays == SelectSeq(left, LAMBDA r : ~(r.offer = w /\ r.who \in Done(w)))
    IN [i \in 1..Len(stays) |-> IF stays[i].offer = w /\ verdict[w] # "unknown"
                                THEN [stays[i] EXCEPT !.offer = "open"] ELSE stays[i]]

Leave(w) ==
    /\ pc[w] = "leaving"
    /\ Goes(w, "done")
    /\ \/ /\ queue' = IF Locking THEN Released(w) ELSE queue
          \* Of those whose requests it ends: a request without this offer is another one.
          /\ journal' = journal \cup {m \in Done(w) : Offered(m) = w}
          /\ UNCHANGED faults
          /\ Say(w, "locks", "says " \o (CASE verdict[w] = "success" -> "SUCCESS" [] verdict[w] = "failure" -> "FAILURE"
                    [] OTHER -> "UNKNOWN") \o (IF OwnRelease \/ Holds(w) THEN " and releases"
                                               ELSE " and frees the latch of another writer"))
       \/ /\ Locking /\ Fault /\ UNCHANGED <<queue, journal>>  \* The release did not arrive.
          /\ Say(w, w, "says what became of it; its release does not arrive")
    /\ UNCHANGED <<log, flying, base, carried, tries, copy, answer, doubt, verdict>>

-----------------------------------------------------------------------------
(* What may happen at any moment *)

Die(w) ==
    /\ pc[w] \notin {"idle", "done", "dead"} /\ Fault
    /\ Goes(w, "dead")
    /\ Say(w, w, "dies")
    /\ UNCHANGED <<service, base, carried, tries, copy, answer, doubt, verdict>>

\* Nobody has extended this request for a lease. Its owner has ended, or is paused.
Expire(w) ==
    /\ Expires /\ Queued(w)
    /\ IF pc[w] \in {"dead", "done"} THEN UNCHANGED faults ELSE Fault
    /\ Prompt => pc[w] \notin {"sure", "sent"}
    /\ queue' = Without(w)
    /\ Say("locks", "locks", "the lease of " \o ToString(w) \o " runs out")
    /\ UNCHANGED <<log, flying, journal, writer>>

-----------------------------------------------------------------------------

Step(w) == \/ Enter(w) \/ Granted(w) \/ Gone(w) \/ TakeBack(w) \/ Plan(w) \/ Gather(w) \/ Ensure(w) \/ Swap(w)
           \/ Receive(w) \/ Locate(w) \/ Leave(w)
Trouble(w) == TimeOut(w) \/ WriteFails(w) \/ LoseAnswer(w) \/ Die(w) \/ Expire(w)

\* All writers have ended and the latch is free. Any other state without a next one is a deadlock, which TLC reports.
Finished == queue = <<>> /\ (\A w \in Writers : pc[w] \in {"done", "dead"}) /\ UNCHANGED vars

Next == (\E w \in Writers : Step(w) \/ Trouble(w)) \/ (\E m \in flying : Perform(m)) \/ Finished

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

-----------------------------------------------------------------------------
(* What is promised *)

Acknowledged(w) == verdict[w] = "success" /\ pc[w] \in {"leaving", "done", "dead"}
Refused(w) == verdict[w] = "failure" /\ pc[w] \in {"leaving", "done", "dead"}

\* An acknowledged append is in the table.
AcknowledgedStays == \A w \in Writers : Acknowledged(w) => In(w, log)
\* No append is in the table twice, whatever its writer was told.
NoneTwice == \A w \in Writers : Cardinality(Adds(w, log)) <= 1
\* A refused append is not in the table: its files may be deleted.
RefusedNever == \A w \in Writers : Refused(w) => ~In(w, log)
\* The parent of each head is the head before it.
Unbroken == [][IsPrefix(log, log') /\ Len(log') <= Len(log) + 1]_log
\* In the end the latch is free, and stays so.
FreeInTheEnd == <>[](queue = <<>>)

Alike == Permutations(Writers)
=============================================================================
