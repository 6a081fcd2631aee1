#!/usr/bin/env bash
# The newcomer's machine: a bare Debian 12 root with nothing installed, a clean clone in it, and the two commands that the README
# gives, timed. Run by hand, as root; it takes the Debian mirror from this system's own apt configuration.
#
#     tools/bare_debian.sh [ROOT]       ROOT: a folder to make (a temporary one, removed at the end)
#     KEEP=1 tools/bare_debian.sh ...   leaves the root, to look around in:  chroot ROOT /bin/bash
#     VERBS="demo" tools/bare_debian.sh the verbs to run (demo test)
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
root=${1:-$(mktemp -d)}
[ "$(id -u)" -eq 0 ] || { echo "needs root, for chroot" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "needs debootstrap" >&2; exit 1; }

leave() {
    for mounted in "$root/proc" "$root/dev"; do
        if mountpoint -q "$mounted"; then umount "$mounted"; fi
    done
    if [ -z "${KEEP:-}" ] && ! mountpoint -q "$root/proc" && ! mountpoint -q "$root/dev"; then
        rm -rf "$root"
    fi
}
trap leave EXIT

# The first Debian mirror that apt uses here, in either of its two file formats.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(CODENAME)' 'Created-By: Packages' |
    awk '$2 == "Debian" && $3 == "bookworm" {print $1; exit}')
[ -n "$mirror" ] || { echo "apt knows no Debian 12 mirror here: apt-get update?" >&2; exit 1; }

if [ ! -e "$root/etc/debian_version" ]; then
    debootstrap --variant=minbase bookworm "$root" "$mirror" >/dev/null
fi
printf 'deb %s bookworm main\n' "$mirror" >"$root/etc/apt/sources.list"
# How this system's apt reaches its mirror (proxy, dates of a snapshot) holds in there, too.
apt-config dump | grep -E '^Acquire::(Check-|https?::)' >"$root/etc/apt/apt.conf.d/90mirror" || [ $? -eq 1 ]
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

rm -rf "$root/home/nibble"
git clone --quiet --no-hardlinks "$repo" "$root/home/nibble"
rm -rf "$root/home/nibble/.git"
before=$(chroot "$root" dpkg-query -W -f '${Package}\n' | sort)
echo "bare root: $(wc -l <<<"$before") packages, $(du -sxm "$root" | cut -f1) MB; cores: $(nproc)"

for verb in ${VERBS:-demo test}; do
    echo "=== ./dev $verb"
    start=$SECONDS status=0
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home LANG=C.UTF-8 \
        /bin/bash -c "cd /home/nibble && ./dev $verb" </dev/null || status=$?
    after=$(chroot "$root" dpkg-query -W -f '${Package}\n' | sort)
    echo "=== ./dev $verb: exit $status in $((SECONDS - start)) s, $(comm -13 <(echo "$before") <(echo "$after") | wc -l) packages installed"
    before=$after
    [ "$status" -eq 0 ] || exit "$status"
done
