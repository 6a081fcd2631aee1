/*
 * The cache of packed weights on the fixture models: what comes out of it is, byte for byte, what packing gives, whatever was done to the
 * file or to the model in between; and a line says which of the two it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <utime.h>

#include "engine/broken.h"
#include "models/packed_cache.h"

/* A disk that fails: what is read from here on cannot be. */
static off_t unreadable = -1;

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    if (offset == unreadable) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, bytes, n, offset);
}

static tempdir tmp; /* the copy of a model, with its cache */

typedef struct bench {
    nb_pool *pool;
    nb_exec *x;
    nb_model *m;
    char said[4096]; /* what was logged, a line each */
} bench;

static void listen(void *ctx, nb_log_level level, const char *line)
{
    bench *b = ctx;
    size_t n = strlen(b->said);
    snprintf(b->said + n, sizeof b->said - n, "%s%s\n", level == NB_LOG_WARN ? "warning: " : "", line);
}

static void begin(bench *b)
{
    *b = (bench){0};
    assert_int_equal(nb_pool_new(2, &b->pool, NULL), NB_OK);
    assert_int_equal(nb_cpu_exec_new("auto", b->pool, 1, &b->x, NULL), NB_OK);
}

static void end(bench *b)
{
    nb_model_free(b->m);
    nb_cpu_exec_free(b->x);
    nb_pool_free(b->pool);
}

static void load(bench *b, nb_load_options o, const char *cache)
{
    nb_error err = {0};
    const nb_sink sink = {.log = listen, .ctx = b};
    begin(b);
    o.packed_cache = cache;
    if (nb_model_load(tmp.path, b->x, &o, &sink, &b->m, &err) != NB_OK) fail_msg("%s", err.cause);
}

static void same_weight(const bench *a, const bench *b, const nb_linear *p, const nb_linear *q)
{
    const nb_packed *v, *w;
    for (size_t form = 0; form <= p->n_derived; form++)
        for (size_t i = 0; (v = a->x->ops->weight_block(p->w, form, i)); i++) {
            w = b->x->ops->weight_block(q->w, form, i);
            assert_non_null(w);
            assert_int_equal(v->format, w->format);
            assert_int_equal(v->n, w->n);
            assert_int_equal(v->k, w->k);
            assert_int_equal(v->scale_k, w->scale_k);
            assert_int_equal(v->odd_scales, w->odd_scales);
            assert_memory_equal(&v->multiplier, &w->multiplier, sizeof v->multiplier);
            assert_memory_equal(v->codes, w->codes, v->panels * v->code_bytes);
            assert_int_equal(v->scales == NULL, w->scales == NULL);
            if (v->scales) assert_memory_equal(v->scales, w->scales, v->panels * v->scale_bytes);
        }
    assert_null(b->x->ops->weight_block(q->w, p->n_derived + 1, 0));
}

static void same_slots(const bench *a, const bench *b, const nb_slot *p, const nb_slot *q, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < p[i].n_lin; e++) same_weight(a, b, &p[i].lin[e], &q[i].lin[e]);
}

/* Loads with the cache, compares with a load without one, and wants `line` among what was said. */
static void expect(nb_load_options o, const char *cache, const char *line)
{
    bench a, b;
    load(&a, o, NULL);
    load(&b, o, cache);
    const size_t n = a.m->cfg.arch->n_tensors;
    same_slots(&a, &b, a.m->global, b.m->global, n);
    same_slots(&a, &b, a.m->layers, b.m->layers, n * (size_t)a.m->cfg.n_layers);
    if (!strstr(b.said, line)) fail_msg("'%s' was not said, but: %s", line, b.said);
    end(&a);
    end(&b);
}

static void copy_model(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, NB_TEST_DATA "/fixtures/models/%s", name);
    broken_copy(&tmp, path);
}

static const char *cache_path(void)
{
    return tempdir_path(&tmp, NB_PACKED_CACHE_NAME);
}

static size_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (size_t)st.st_size;
}

static void flip(size_t at)
{
    FILE *f = fopen(cache_path(), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_true(fputc(c ^ 0x10, f) != EOF && fclose(f) == 0);
}

#define KEPT "kept for the next start"
#define TAKEN "packed weights from"

/* Each format, experts, stacks, diagonal blocks, derived forms. */
static void what_was_kept_comes_back(void **state)
{
    static const char *const models[] = {"llama_ct",
                                         "llama_mixed",
                                         "llama_fp8_channel",
                                         "llama_fp8_block",
                                         "llama_tied_ct",
                                         "deepseek_v4_mxfp4",
                                         "deepseek_v4_bf16",
                                         "deepseek_v4_ct",
                                         "deepseek_v3_modelopt",
                                         "gpt_oss_mxfp4",
                                         "gpt_oss_bf16",
                                         "qwen3_moe_modelopt",
                                         "nemotron_h_latent_ct"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        copy_model(models[i]);
        expect((nb_load_options){0}, "auto", KEPT);
        const size_t size = size_of(cache_path());
        expect((nb_load_options){0}, "auto", TAKEN);
        assert_int_equal(size_of(cache_path()), size);
        tempdir_remove(&tmp);
    }
}

/* Odd scale bytes choose another decoder: they must still be seen. */
static void odd_scales_are_seen(void **state)
{
    copy_model("llama_ct");
    broken_poke(&tmp, "model.layers.0.self_attn.q_proj.weight_scale", 5, "\x7F", 1, NULL);
    expect((nb_load_options){0}, "auto", KEPT);
    expect((nb_load_options){0}, "auto", TAKEN);
    bench b;
    load(&b, (nb_load_options){0}, "auto");
    size_t odd = 0;
    for (size_t i = 0; i < b.m->cfg.arch->n_tensors; i++)
        for (size_t e = 0; e < b.m->layers[i].n_lin; e++)
            odd += b.x->ops->weight_block(b.m->layers[i].lin[e].w, 0, 0)->odd_scales;
    assert_int_equal(odd, 1);
    end(&b);
    tempdir_remove(&tmp);
}

static nb_status one_to_bf16(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                             int64_t expert, nb_linear_src *src, nb_error *err)
{
    if (strstr(src->module, "layers.1.mlp.up_proj")) src->to_bf16 = true;
    return NB_OK;
}

static nb_status twice(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer, int64_t expert,
                       nb_linear_src *src, nb_error *err)
{
    src->multiplier *= 2;
    return NB_OK;
}

static nb_status other_input(void *ctx, const nb_model *m, const nb_arch_tensor *row, int64_t layer,
                             int64_t expert, nb_linear_src *src, nb_error *err)
{
    src->has_input = true;
    src->input_gs = 3;
    return NB_OK;
}

/* Other weights are kept in place of the first; where inputs' scales come from is no part of a weight. */
static void settings_that_change_weights_are_told_apart(void **state)
{
    copy_model("llama_modelopt");
    expect((nb_load_options){0}, "auto", KEPT);
    expect((nb_load_options){.adjust = other_input}, "auto", TAKEN);
    expect((nb_load_options){.adjust = one_to_bf16}, "auto", KEPT);
    expect((nb_load_options){.adjust = one_to_bf16}, "auto", TAKEN);
    expect((nb_load_options){.adjust = twice}, "auto", KEPT);
    expect((nb_load_options){0}, "auto", KEPT);
    expect((nb_load_options){0}, "auto", TAKEN);
    tempdir_remove(&tmp);
}

static void changed_files_are_seen(void **state)
{
    const struct utimbuf other = {1000000000, 1000000000};
    copy_model("llama_ct");
    expect((nb_load_options){0}, "auto", KEPT);
    broken_poke(&tmp, "model.layers.0.self_attn.q_proj.weight_packed", 0, "\x12", 1, NULL);
    assert_int_equal(utime(tempdir_path(&tmp, "model.safetensors"), &other), 0);
    expect((nb_load_options){0}, "auto", "warning: ");
    expect((nb_load_options){0}, "auto", TAKEN);
    assert_int_equal(utime(tempdir_path(&tmp, "model.safetensors"), NULL), 0);
    expect((nb_load_options){0}, "auto", "was made of other files, or they have changed since");
    tempdir_remove(&tmp);
}

/* A bit of every part of the file, and every length: a warning, the right weights, and a whole file afterwards. */
static void damage_is_seen(void **state)
{
    copy_model("llama_ct");
    expect((nb_load_options){0}, "auto", KEPT);
    const size_t size = size_of(cache_path());
    const size_t at[] = {15, 16, 24, 32, 40, 56, 64, 80, 88, 92, 93, 100, 4000, size / 2, size - 1};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        flip(at[i]);
        expect((nb_load_options){0}, "auto", "warning: ");
        expect((nb_load_options){0}, "auto", TAKEN);
    }
    const size_t cut[] = {64, 65, 1000, size / 2, size - 1, size + 1};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        assert_int_equal(truncate(cache_path(), (off_t)cut[i]), 0);
        expect((nb_load_options){0}, "auto", "is cut short, or has grown");
        expect((nb_load_options){0}, "auto", TAKEN);
    }
    tempdir_remove(&tmp);
}

static void put_number(size_t at, uint64_t v)
{
    FILE *f = fopen(cache_path(), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_true(fwrite(&v, 1, sizeof v, f) == sizeof v && fclose(f) == 0);
}

/* Numbers of weights (byte 24, 32 bytes each) and of pieces (byte 32, 8 each), each of which alone might fit into the file. */
static void an_index_larger_than_the_file(void **state)
{
    copy_model("llama_ct");
    expect((nb_load_options){0}, "auto", KEPT);
    const size_t size = size_of(cache_path());
    const uint64_t counts[][2] = {
        {size / 32, 1}, {1, size / 8}, {size / 64, size / 16}, {1 + size / 64, size / 16}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        put_number(24, counts[i][0]);
        put_number(32, counts[i][1]);
        expect((nb_load_options){0}, "auto", "is damaged");
        expect((nb_load_options){0}, "auto", TAKEN);
    }
    tempdir_remove(&tmp);
}

/* Begins behind the header of 64 bytes. */
static void an_index_that_cannot_be_read(void **state)
{
    copy_model("llama_ct");
    expect((nb_load_options){0}, "auto", KEPT);
    unreadable = 64;
    expect((nb_load_options){0}, "auto", "has an index that cannot be read");
    unreadable = -1;
    expect((nb_load_options){0}, "auto", TAKEN); /* of the file that was written anew */
    tempdir_remove(&tmp);
}

/* A download that puts a new file in place while the old one is being loaded: what was packed is the old one's. */
static void a_shard_replaced_while_it_is_loaded(void **state)
{
    bench b;
    nb_packed_cache *c = NULL;
    nb_error err;
    char model[600], old[600];
    copy_model("llama_tied_ct");
    load(&b, (nb_load_options){0}, NULL);
    snprintf(model, sizeof model, "%s", tempdir_path(&tmp, "model.safetensors"));
    snprintf(old, sizeof old, "%s", tempdir_path(&tmp, "old"));
    assert_int_equal(rename(model, old), 0);
    tempdir next = tmp;
    copy_model("llama_tied_ct");
    broken_poke(&tmp, "model.embed_tokens.weight", 0, "\x12", 1, NULL);
    assert_int_equal(rename(tempdir_path(&tmp, "model.safetensors"), model), 0);
    tempdir_remove(&tmp);
    tmp = next;

    const nb_sink sink = {.log = listen, .ctx = &b};
    assert_int_equal(nb_packed_cache_open("auto", b.m, &sink, &c, &err), NB_OK);
    const nb_slot *embed = nb_at(b.m, b.m->global, NB_PART_EMBED);
    nb_weight *w = NULL;
    assert_int_equal(nb_packed_cache_pack(c, embed->lin, embed->src, &w, &err), NB_OK);
    assert_int_equal(nb_packed_cache_keep(c, &err), NB_OK);
    assert_non_null(strstr(b.said, KEPT));
    b.x->ops->weight_free(w);
    nb_packed_cache_free(c);
    end(&b);
    expect((nb_load_options){0}, "auto", "was made of other files, or they have changed since");
    tempdir_remove(&tmp);
}

/* Between opening and reading: an error inside, which costs the packing, and no signal. */
static void a_file_that_shrinks_in_use(void **state)
{
    bench b;
    nb_packed_cache *c = NULL;
    nb_error err;
    copy_model("llama_ct");
    expect((nb_load_options){0}, "auto", KEPT);
    load(&b, (nb_load_options){0}, NULL);
    const nb_sink sink = {.log = listen, .ctx = &b};
    assert_int_equal(nb_packed_cache_open(cache_path(), b.m, &sink, &c, &err), NB_OK);
    assert_int_equal(truncate(cache_path(), 4096), 0);
    const nb_slot *embed = nb_at(b.m, b.m->global, NB_PART_EMBED);
    const nb_linear *l = embed->lin;
    if (!l) abort(); /* the analyzer does not know that an assertion ends the test */
    nb_weight *w = NULL;
    assert_int_equal(nb_packed_cache_pack(c, l, embed->src, &w, &err), NB_OK);
    assert_non_null(strstr(b.said, "damaged"));
    nb_linear again = *l;
    again.w = w;
    same_weight(&b, &b, l, &again);
    b.x->ops->weight_free(w);
    nb_packed_cache_free(c);
    end(&b);
    tempdir_remove(&tmp);
}

static void refuse(const char *path, nb_status status)
{
    bench b;
    nb_error err = {0};
    begin(&b);
    const nb_load_options o = {.packed_cache = path};
    assert_int_equal(nb_model_load(tmp.path, b.x, &o, NULL, &b.m, &err), status);
    assert_null(b.m);
    assert_non_null(strstr(err.file, strrchr(path, '/')));
    end(&b);
}

/* Nothing but a cache is written over. */
static void other_files_are_left_alone(void **state)
{
    copy_model("llama_ct");
    char model[600];
    snprintf(model, sizeof model, "%s", tempdir_path(&tmp, "model.safetensors"));
    const size_t size = size_of(model);
    refuse(model, NB_ERR_ARGUMENT);
    assert_int_equal(size_of(model), size);
    refuse(tempdir_write(&tmp, "empty", "", 0), NB_ERR_ARGUMENT);
    refuse(tempdir_write(&tmp, "cut", "nibble pack", 11), NB_ERR_ARGUMENT);
    assert_int_equal(mkdir(tempdir_path(&tmp, "folder"), 0700), 0);
    refuse(tmp.file, NB_ERR_FORMAT);
    tempdir_write(&tmp, "later", "nibble packed 2\nwhatever else there is in it, more than a header's length",
                  73);
    char later[600];
    snprintf(later, sizeof later, "%s", tmp.file);
    expect((nb_load_options){0}, later, "another version");
    expect((nb_load_options){0}, later, TAKEN);
    tempdir_remove(&tmp);
}

/* A limit on the size of files stands for a disk that fills up. */
static void a_full_disk_is_a_warning(void **state)
{
    struct rlimit was, small;
    copy_model("llama_ct");
    const int entries = tempdir_entries(&tmp);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 20000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect((nb_load_options){0}, "auto", "warning: packed weights are not kept");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(tempdir_entries(&tmp), entries);
    expect((nb_load_options){0}, "/nonexistent/cache", "warning: packed weights are not kept");
    tempdir_remove(&tmp);
}

static void streams_have_none(void **state)
{
    bench b;
    nb_error err = {0};
    copy_model("llama_ct");
    begin(&b);
    const nb_load_options o = {.packed_cache = "auto", .stream = true};
    assert_int_equal(nb_model_load(tmp.path, b.x, &o, NULL, &b.m, &err), NB_ERR_ARGUMENT);
    end(&b);
    tempdir_remove(&tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_kept_comes_back),
        cmocka_unit_test(odd_scales_are_seen),
        cmocka_unit_test(settings_that_change_weights_are_told_apart),
        cmocka_unit_test(changed_files_are_seen),
        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(an_index_larger_than_the_file),
        cmocka_unit_test(an_index_that_cannot_be_read),
        cmocka_unit_test(a_shard_replaced_while_it_is_loaded),
        cmocka_unit_test(a_file_that_shrinks_in_use),
        cmocka_unit_test(other_files_are_left_alone),
        cmocka_unit_test(a_full_disk_is_a_warning),
        cmocka_unit_test(streams_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
