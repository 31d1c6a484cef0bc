#!/usr/bin/env bash
# Makes a base image of Debian's packages, for machines whose Docker reaches no image registry; needs root and
# debootstrap (apt-get install debootstrap). The certificates that this machine trusts are trusted in the image too.
#
#     bash docker/base.sh commit-coord-base && docker build --build-arg BASE=commit-coord-base …
set -euo pipefail
name=$1
suite=${2:-bookworm}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" >"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
rm -f "$root.log"
awk -v to="$root/usr/local/share/ca-certificates/machine-" \
    '/BEGIN CERTIFICATE/ { n++ } n { print > (to n ".crt") }' /etc/ssl/certs/ca-certificates.crt
chroot "$root" update-ca-certificates >/dev/null 2>&1
rm -rf "$root"/var/cache/apt/archives/*.deb
tar -C "$root" -c . | docker import - "$name"
