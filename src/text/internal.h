/*
 * What the files of the tokenizer share. tokenizer.json describes a pipeline; each stage has one file:
 *
 *     text -> added.c (special tokens) -> normalise.c -> added.c (normalised ones) -> pretokenise.c -> bpe.c -> ids
 *          -> postprocess.c (BOS)                                       ids -> detok.c -> text
 *
 * There are two kinds of vocabulary: byte-level ones spell each byte as a printable character (GPT-2's alphabet), and
 * those of SentencePiece's style are spelled as the text is, with U+2581 for a space and <0x0A> for a byte that no token has.
 *
 * vocab.c holds the tokens, regex.c turns a pattern into PCRE2's dialect, tokenizer_load.c reads the file and lets each
 * stage take its part of it. Each stage refuses what it does not know by name.
 */
#ifndef NB_TEXT_INTERNAL_H
#define NB_TEXT_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#include "base/json.h"
#include "base/map.h"
#include "text/tokenizer.h"

#define NB_TOK_NONE UINT32_MAX
#define NB_SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */
/* Largest id + 1. Far above any vocabulary; it bounds what a bad file can make us allocate. */
#define NB_TOK_MAX_IDS ((uint32_t)1 << 22)

/* ---- normalise.c ---- */

/* A literal text and what takes its place. */
typedef struct nb_replacement {
    char *from, *to;
    size_t from_n, to_n; /* from_n > 0 */
} nb_replacement;
/* Reads a Replace component ("pattern" {"String"}, "content"). A pattern that is a Regex, or empty, is NB_ERR_UNSUPPORTED. */
nb_status nb_replacement_load(nb_replacement *r, const json_t *spec, const char *stage, nb_error *err);
void nb_replacement_free(nb_replacement *r);
/* Appends s with every occurrence replaced, from the left, none overlapping. */
void nb_replace(const nb_replacement *r, const char *s, size_t n, nb_buf *out);

typedef enum nb_normal_kind { NB_NORMAL_NFC, NB_NORMAL_PREPEND, NB_NORMAL_REPLACE } nb_normal_kind;
typedef struct nb_normal_step {
    nb_normal_kind kind;
    nb_replacement r; /* PREPEND: r.to alone */
} nb_normal_step;
typedef struct nb_normaliser {
    nb_normal_step *steps;
    size_t n;
} nb_normaliser;

/* The "normalizer" object; NULL or null: nothing to do. */
nb_status nb_normaliser_load(nb_normaliser *m, const json_t *spec, nb_error *err);
void nb_normaliser_free(nb_normaliser *m);
/* Normalises s (valid UTF-8): *out is s itself where nothing changes, else memory that the caller frees (*owned). */
nb_status nb_normalise(const nb_normaliser *m, const char *s, size_t n, const char **out, size_t *out_n,
                       char **owned, nb_error *err);

/* ---- detok.c: what the decoder makes of a token ---- */

typedef struct nb_decoder {
    bool byte_level;    /* tokens are spelled in the byte alphabet; the rest is then unused */
    bool byte_fallback; /* <0x0A> stands for that byte */
    nb_replacement *replace;
    size_t n_replace;
    char strip[4]; /* a character that is dropped from the front of the whole text, */
    unsigned char strip_n;
    unsigned char strip_count; /* so many times at most */
} nb_decoder;

nb_status nb_decoder_load(nb_decoder *d, const json_t *spec, nb_error *err);
void nb_decoder_free(nb_decoder *d);
/* Appends what a token of a vocabulary that is not byte-level gives alone. *byte: it is one byte, spelled. */
nb_status nb_decoder_apply(const nb_decoder *d, const char *text, size_t n, nb_buf *out, bool *byte,
                           nb_error *err);

/* ---- vocab.c ---- */

/* Strings that live as long as the tokenizer and never move. Zero-initialise. */
typedef struct nb_arena {
    struct nb_arena_block *head;
} nb_arena;
/* A copy of n bytes; never NULL but when out of memory, even for n = 0. */
char *nb_arena_copy(nb_arena *a, const char *s, size_t n);
void nb_arena_free(nb_arena *a);

typedef struct nb_token {
    const char *s; /* bytes as the decoder gives them; NULL: no token has this id */
    uint32_t n;
    uint32_t added; /* 1 + index in nb_added.tokens; 0: not an added token */
    bool byte;      /* a byte that byte_fallback spells */
} nb_token;

typedef struct nb_vocab {
    nb_arena strings;
    nb_token *tokens; /* by id */
    uint32_t n, cap;
    uint32_t entries;   /* in the model's vocabulary */
    nb_decoder decoder; /* set before anything is loaded */
    nb_map
        by_bytes; /* entries that encoding can make, by the bytes of a piece: byte-level those in the alphabet, else all */
    nb_map by_text;       /* the other entries (special tokens), as they are */
    nb_map added_by_text; /* added tokens by their content */
} nb_vocab;

/* The bytes that a string in the byte alphabet of GPT-2 stands for, into dst (n bytes are enough). False: a character
 * outside that alphabet; dst is then undefined. */
bool nb_byte_alphabet(const char *s, size_t n, char *dst, size_t *dst_n);
/* The model's "vocab" object; v->decoder says how it is spelled. */
nb_status nb_vocab_load(nb_vocab *v, const char *json, size_t n, nb_error *err);
/* Makes id a token. text is its spelling in the file; the decoder's rule gives its bytes. */
nb_status nb_vocab_set(nb_vocab *v, uint32_t id, const char *text, size_t n, nb_error *err);
/* The id of an entry of the model's vocabulary, given as the file spells it. work is a buffer to use; false with work bad
 * means out of memory. */
bool nb_vocab_find(const nb_vocab *v, const char *text, size_t n, nb_buf *work, uint32_t *id);
/* Appends a token's spelling in the file. False: no token has the id. */
bool nb_vocab_spell(const nb_vocab *v, uint32_t id, nb_buf *out);
void nb_vocab_free(nb_vocab *v);

/* ---- bpe.c ---- */

typedef struct nb_bpe_slot {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* NB_TOK_NONE: empty */
    uint32_t id;
} nb_bpe_slot;

typedef struct nb_bpe {
    nb_bpe_slot *slots; /* open addressing; cap is a power of two, 0 without merges */
    size_t cap, count;
    uint64_t seed;
    uint32_t byte_id[256];     /* of the one-byte pieces; NB_TOK_NONE: the vocabulary lacks this byte */
    bool chars;                /* a piece starts as its characters, not as its bytes */
    bool byte_fallback;        /* with chars: a character that has no token becomes its bytes' tokens */
    uint32_t fallback_id[256]; /* NB_TOK_NONE: none */
    bool ignore_merges;        /* a whole piece that is in the vocabulary needs no merges */
    bool fuse_unk;
    uint32_t unk; /* NB_TOK_NONE: unknown bytes are dropped */
    bool joins
        [256]; /* with chars: some merge has this byte before U+2581 inside; where the text has another, no merge passes */
    bool cuts; /* joins may be relied on */
} nb_bpe;

typedef struct nb_bpe_symbol nb_bpe_symbol;
typedef struct nb_bpe_cached nb_bpe_cached;
typedef struct nb_bpe_scratch {
    nb_bpe_symbol *symbols;
    size_t symbols_cap;
    uint64_t *heap; /* rank << 32 | position */
    size_t heap_len;
    nb_bpe_cached *cache;
} nb_bpe_scratch;

/* The model's "merges" array; v is complete, and b's flags and unk are set. */
nb_status nb_bpe_load(nb_bpe *b, const nb_vocab *v, const char *json, size_t n, nb_error *err);
void nb_bpe_free(nb_bpe *b);
bool nb_bpe_scratch_init(nb_bpe_scratch *s);
void nb_bpe_scratch_free(nb_bpe_scratch *s);
/* Appends the ids of one piece (n bytes, UTF-8). O(n log n). */
nb_status nb_bpe_encode(const nb_bpe *b, const nb_vocab *v, nb_bpe_scratch *s, const char *piece, size_t n,
                        nb_ids *out, nb_error *err);

/* ---- added.c ---- */

typedef struct nb_added_token {
    const char *text; /* what is looked for: the content, normalised where the token asks for it */
    uint32_t n, id;
    bool single_word, lstrip, rstrip, normalized, special;
} nb_added_token;

typedef struct nb_trie_node {
    uint32_t child, sibling; /* 0: none (0 is the root) */
    uint32_t token;          /* 1 + index in nb_added.tokens; 0: none ends here */
    unsigned char byte;
} nb_trie_node;

typedef struct nb_trie {
    nb_trie_node *nodes; /* NULL: no tokens */
    uint32_t n, cap;
    uint32_t first[256]; /* the root's children, by byte */
} nb_trie;

typedef struct nb_added {
    nb_added_token *tokens;
    uint32_t n;
    nb_trie raw, normalised; /* the two passes */
} nb_added;

/* The "added_tokens" array; v holds the model's vocabulary and gets their ids. */
nb_status nb_added_load(nb_added *a, nb_vocab *v, const nb_normaliser *m, const json_t *array, nb_error *err);
void nb_added_free(nb_added *a);
/* Calls part for the stretches of s in order: id >= 0 where the trie's token stands, -1 for text between (never empty). */
typedef nb_status (*nb_part_fn)(void *ctx, const char *s, size_t n, int64_t id);
nb_status nb_added_scan(const nb_added *a, const nb_trie *trie, const char *s, size_t n, nb_part_fn part,
                        void *ctx);

/* ---- regex.c ---- */

/* The same pattern in PCRE2's dialect. tokenizers' patterns are Oniguruma's (Ruby syntax); where the two engines read
 * one spelling differently it is rewritten, and what has no equal is NB_ERR_UNSUPPORTED. */
nb_status nb_regex_translate(const char *pattern, size_t n, nb_buf *out, nb_error *err);
/* Compiles an Oniguruma pattern, or literal text. JIT where the system allows it. Free with pcre2_code_free. */
nb_status nb_regex_compile(const char *pattern, size_t n, bool literal, pcre2_code **out, bool *jit,
                           nb_error *err);

/* ---- pretokenise.c ---- */

typedef struct nb_split {
    pcre2_code *code;
    bool jit;
    bool invert;   /* what matches is text, what lies between is the delimiter */
    bool removed;  /* delimiters are dropped; else they are pieces of their own, */
    bool previous; /* or go with the piece before them, unless that is one */
} nb_split;

/* Metaspace: spaces become a mark, and one is put in front. */
typedef struct nb_metaspace {
    nb_replacement space; /* " " by the mark; from NULL: there is no Metaspace */
    bool always,
        first;  /* the mark goes before every stretch that has none, or before the first of the text alone */
    bool split; /* every mark begins a piece */
} nb_metaspace;

typedef struct nb_pretokeniser {
    nb_split *splits; /* each cuts the pieces of the one before */
    size_t n;
    nb_metaspace metaspace; /* before the splits */
    bool byte_level;        /* pieces are then spelled in the byte alphabet */
} nb_pretokeniser;

typedef struct nb_match_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} nb_match_scratch;

nb_status nb_pretokeniser_load(nb_pretokeniser *p, const json_t *spec, nb_error *err);
void nb_pretokeniser_free(nb_pretokeniser *p);
bool nb_match_scratch_init(nb_match_scratch *m);
void nb_match_scratch_free(nb_match_scratch *m);
/* Calls piece (id is -1) for each piece of s, which is valid UTF-8 and not empty. first: it is the beginning of the text. */
nb_status nb_pretokenise(const nb_pretokeniser *p, nb_match_scratch *m, const char *s, size_t n, bool first,
                         nb_part_fn piece, void *ctx, nb_error *err);

/* ---- postprocess.c ---- */

typedef struct nb_template {
    nb_ids before, after; /* what add_special puts around the text */
} nb_template;
nb_status nb_template_load(nb_template *t, const json_t *spec, nb_error *err);
void nb_template_free(nb_template *t);

/* ---- tokenizer.c ---- */

bool nb_ids_add(nb_ids *ids, uint32_t id);

struct nb_tokenizer {
    nb_vocab vocab;
    nb_added added;
    nb_normaliser normaliser;
    nb_pretokeniser pre;
    nb_bpe bpe;
    nb_template template;
    int64_t bos, eos;
};

struct nb_tok_scratch {
    const nb_tokenizer *t; /* the only one that it serves: cached pieces are its */
    nb_match_scratch match;
    nb_bpe_scratch bpe;
};

/* ---- tokenizer_load.c ---- */

/* The "type" of a component, or NB_ERR_FORMAT. stage is its key in the file. */
nb_status nb_component_type(const json_t *spec, const char *stage, const char **type, nb_error *err);
/* The status of a parser that stopped: NB_ERR_FORMAT, or NB_ERR_NOMEM where a string did not fit. */
nb_status nb_tok_json_error(const nb_json *j, const char *what, nb_error *err);
/* NB_ERR_UNSUPPORTED: "STAGE WHAT is not supported", with the remedy. */
nb_status nb_tok_unsupported(nb_error *err, const char *stage, const char *what);

#endif
