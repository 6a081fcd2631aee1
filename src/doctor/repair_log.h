/*
 * The log of a repair: how each file that was changed comes back, as a list of pieces, either of the new file or of the bytes
 * that were taken out of the old one. Those go to a file of their own, because they may be as large as the weights they were.
 */
#ifndef NB_DOCTOR_REPAIR_LOG_H
#define NB_DOCTOR_REPAIR_LOG_H

#include "doctor/repair_plan.h"

/* Private but for its size. Zero-initialise; nb_relog_free. */
typedef struct nb_relog {
    nb_buf files; /* JSON objects, one a file, with commas between */
    size_t n_files;
    nb_writer *old;
    uint64_t old_size;
    /* the file at hand */
    bool pending, pending_new;
    uint64_t begin, end;
    size_t n_pieces;
    uint64_t size;
    void *hash; /* XXH3_state_t */
} nb_relog;

/* Opens dir/nibble_repair.old. */
nb_status nb_relog_open(nb_relog *l, const char *dir, nb_error *err);
/* A file that was not there before. */
void nb_relog_created(nb_relog *l, const char *name);
/* Begins a file that was; keep, lost and nb_relog_end must then tell all its old bytes, in order. */
void nb_relog_begin(nb_relog *l, const char *name);
/* n old bytes that are in the new file too, at `at`. */
void nb_relog_keep(nb_relog *l, const void *bytes, size_t n, uint64_t at);
/* n old bytes that are not. */
nb_status nb_relog_lost(nb_relog *l, const void *bytes, size_t n, nb_error *err);
/* n old bytes and what lies in their place in the new file, at `at`. */
nb_status nb_relog_changed(nb_relog *l, const void *old, const void *now, size_t n, uint64_t at,
                           nb_error *err);
void nb_relog_end(nb_relog *l);
/* Writes dir/nibble_repair.json: source, what was done and refused, the files. */
nb_status nb_relog_close(nb_relog *l, const char *dir, const nb_plan *p, nb_error *err);
void nb_relog_free(nb_relog *l);

#endif
