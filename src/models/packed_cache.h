/*
 * Packed weights kept in a file from one start to the next: for what takes longer to make than to read (linears that a policy turns to
 * BF16, derived forms, transposed stacks, FP8). Every weight is found by all that makes it what it is, so a file never has to fit the
 * whole run, and none is believed without its hash:
 *
 *     64 bytes     magic "nibble packed 1\n", size of the file, number of weights, number of pieces, identity of the checkpoint (128
 *                  bits), hash of the index
 *     the index    a weight each: key (128 bits), where its bytes begin, pieces, formats of its forms; then a hash of each piece
 *     from a multiple of 64 on, in order: codes and scales of each block of each form, as they lie in memory
 *
 * A piece is some panels (packed.h), about 64 KiB of codes with their scales: the thread that reads one hashes it. Hashes are XXH3, 64
 * bits, against cut, stale and damaged files, not against who can write them: that one could write the model as well.
 *
 * Identity: name, size, modification time and header of every shard. The bytes of tensors are not looked at, which would take as long as
 * packing them: who changes a shard in place and sets its time back must remove the cache. Key: identity, and what the loader made of the
 * linear (nb_linear_src, blocks, derived forms). Neither instruction set nor arithmetic are in it, since packing depends on neither.
 *
 * The file is read, not mapped: one that shrinks or sits on a failing disk must not end the server by a signal, packed weights lie in huge
 * pages, and reading is no slower than packing NVFP4 (docs/performance.md).
 */
#ifndef NB_MODELS_PACKED_CACHE_H
#define NB_MODELS_PACKED_CACHE_H

#include "models/model.h"

#define NB_PACKED_CACHE_NAME "nibble-packed.cache" /* what "auto" means, in the model's folder */

typedef struct nb_packed_cache nb_packed_cache;

/* Opens the cache at path for the weights of m, whose checkpoint is open; or "auto". No file, or
 * one that is cut, damaged, of another version or of other files: sink is told, and every weight will be packed. A file that is no cache
 * at all is NB_ERR_ARGUMENT: it will not be written over. Free with nb_packed_cache_free. */
nb_status nb_packed_cache_open(const char *path, nb_model *m, const nb_sink *sink, nb_packed_cache **out,
                               nb_error *err);
/* As nb_model_pack, from the file where it has this weight. Weights must be asked for in the same order as when the file was written. */
nb_status nb_packed_cache_pack(nb_packed_cache *c, const nb_linear *l, const nb_linear_src *src,
                               nb_weight **out, nb_error *err);
/* Writes the file anew if it lacked a weight that was asked for; they must all still be there. Whole or not at all: beside the old
 * one, synced, renamed. What cannot be written (a full disk, a folder of others) is a warning to sink, not an error. */
nb_status nb_packed_cache_keep(nb_packed_cache *c, nb_error *err);
void nb_packed_cache_free(nb_packed_cache *c); /* c may be NULL */

#endif
