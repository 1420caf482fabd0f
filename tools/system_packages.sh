#!/bin/sh
# Installs the Debian packages of commands that are missing: sh tools/system_packages.sh kcat:kcat ip:iproute2
#
# It needs apt-get, and root or sudo without a password. Where it may not or cannot install something it says so and
# still succeeds: what needs the command says so again, in its own words.
set -u
missing=""
for need in "$@"; do
  command -v "${need%%:*}" >/dev/null 2>&1 || missing="$missing ${need#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
  as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  as_root="sudo -n"
else
  echo "Not installed:$missing (this user is not root, and sudo asks for a password)."
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "Not installed:$missing (there is no apt-get here)."
  exit 0
fi

echo "Installing Debian packages:$missing"
said=$(mktemp)
# A list of packages that cannot be brought up to date may still name what is asked for.
$as_root apt-get update -q >"$said" 2>&1
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >>"$said" 2>&1; then
  echo "Not installed:$missing. apt-get said:"
  tail -n 3 "$said" | sed 's/^/  /'
fi
rm -f "$said"
