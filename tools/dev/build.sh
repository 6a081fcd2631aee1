# Building, installing, measuring. Sourced by ./dev.

# compile PRESET TARGET...: CMakePresets.json says what a preset is.
compile() {
    local preset=$1 folder=build
    shift
    [ "$preset" = default ] || folder=build-$preset
    mkdir -p "$folder"
    quietly "$folder/configure.log" cmake --preset "$preset"
    # On a terminal ninja keeps to one line; in a log it need only speak of faults.
    local quiet=()
    [ -t 1 ] || quiet=(--quiet)
    say "building $folder"
    ninja -C "$folder" -j "$JOBS" "${quiet[@]}" "$@"
}

build() {
    need "${PACKAGES_BUILD[@]}"
    compile default nibble nibble_shared nibble_static
}

install_to() {
    build
    cmake --install build --prefix "$1"
    say "installed. To build against it: PKG_CONFIG_PATH=$1/lib/pkgconfig pkg-config --cflags --libs nibble"
}

bench() {
    need "${PACKAGES_BUILD[@]}"
    compile default nibble nb_ops
    build/nb_ops --bench
    build/nibble bench models/demo
}
