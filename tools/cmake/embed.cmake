# Writes a C file that holds a file's bytes: cmake -DIN=FILE -DOUT=FILE.c -DSYMBOL=NAME -P embed.cmake. See nb_embed in CMakeLists.txt.
file(READ "${IN}" hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" lines "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${lines}")
get_filename_component(name "${IN}" NAME)
file(WRITE "${OUT}" "/* ${name}, made by tools/cmake/embed.cmake. */
#include <stddef.h>

extern const unsigned char ${SYMBOL}[];
extern const size_t ${SYMBOL}_size;
const unsigned char ${SYMBOL}[] = {
${bytes}
0};
const size_t ${SYMBOL}_size = ${size};
")
