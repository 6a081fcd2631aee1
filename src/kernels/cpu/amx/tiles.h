/* The shapes of AMX's tiles, for the product and for the loop that measures what it could reach. */
#ifndef NB_KERNELS_AMX_TILES_H
#define NB_KERNELS_AMX_TILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct nb_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} nb_tile_config;
_Static_assert(sizeof(nb_tile_config) == 64, "what ldtilecfg reads");

static inline void nb_tiles_load(const nb_tile_config *c)
{
    /* gcc 12 believes that the instruction reads eight bytes only. */
    __asm__ volatile("ldtilecfg %0" : : "m"(*c) : "memory");
}

/* Tiles 0 to 3: sums (row of tiles, then panel); 4, 5: activations; 6, 7: weights. The second row of tiles may be short. */
static inline void nb_tiles_configure(nb_tile_config *c, size_t rows0, size_t rows1)
{
    memset(c, 0, sizeof *c);
    c->palette = 1;
    for (size_t i = 0; i < 8; i++) {
        bool second = i == 2 || i == 3 || i == 5;
        c->colsb[i] = 64;
        c->rows[i] = (uint8_t)(i >= 6 ? 16 : second ? rows1 : rows0);
    }
    nb_tiles_load(c);
}

#endif
