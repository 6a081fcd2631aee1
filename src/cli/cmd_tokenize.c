/* nibble tokenize: a filter from JSON lines to JSON lines, so that scripts can see exactly what a model sees. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "base/file.h"
#include "base/json_tree.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

static const char verb[] = "tokenize";

static const char usage[] =
    "usage: nibble tokenize DIR [options] < LINES\n\n"
    "Reads JSON strings, one a line, and prints a JSON array of token ids for each. DIR needs no weights: a "
    "folder with\n"
    "tokenizer.json is enough. Special tokens that the text spells out are recognised; none are added.\n\n"
    "      --add-special   add what the tokenizer puts around a text (BOS)\n"
    "      --decode        the other way: id arrays in, JSON strings out; bytes that are not UTF-8 come out "
    "as U+FFFD\n"
    "      --skip-special  with --decode: leave special tokens out\n"
    "      --chat          chat requests in, {\"messages\", \"tools\"?, \"documents\"?, "
    "\"add_generation_prompt\"?, "
    "\"continue_final_message\"?,\n"
    "                      \"chat_template_kwargs\"?}, rendered by the folder's chat template;\n"
    "                      {\"prompt\", \"ids\"} or {\"error\"} out\n"
    "      --format F      text or json, as with other verbs: JSON lines in either case\n"
    "  -h, --help\n\n"
    "examples:\n"
    "  echo '\"Hello world\"' | nibble tokenize models/demo\n"
    "  echo '\"Hello world\"' | nibble tokenize models/demo | nibble tokenize models/demo --decode\n"
    "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"chat_template_kwargs\": "
    "{\"thinking\": true}}' |\n"
    "      nibble tokenize models/demo --chat\n"
    "  jq -R . book.txt | nibble tokenize models/demo | jq length     # tokens of each line of a text\n";

typedef struct options {
    const char *dir;
    bool add_special, decode, skip_special, chat, help;
} options;

typedef struct session {
    const options *o;
    nb_tokenizer *t;
    nb_tok_scratch *s;
    nb_chat_format *chat; /* with --chat */
    size_t line;
    nb_buf out; /* the answer to one line */
    nb_ids ids;
    nb_buf text;
} session;

static nb_status bad_line(const session *k, nb_error *err, const char *what)
{
    nb_fail(err, NB_ERR_ARGUMENT, "line %zu of the input: %s", k->line, what);
    return NB_ERR_ARGUMENT;
}

static void put_ids(session *k)
{
    nb_buf_addc(&k->out, '[');
    for (size_t i = 0; i < k->ids.len; i++) nb_buf_addf(&k->out, i ? ", %u" : "%u", k->ids.data[i]);
    nb_buf_addc(&k->out, ']');
}

static nb_status encode(session *k, const char *s, size_t n, bool add_special, nb_error *err)
{
    k->ids.len = 0;
    return nb_tokenizer_encode(k->t, k->s, s, n, add_special, &k->ids, err);
}

static nb_status encode_line(session *k, const json_t *v, nb_error *err)
{
    if (!json_is_string(v)) return bad_line(k, err, "expected a JSON string");
    nb_status s = encode(k, json_string_value(v), json_string_length(v), k->o->add_special, err);
    if (!s) put_ids(k);
    return s;
}

static nb_status decode_line(session *k, const json_t *v, nb_error *err)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v)) return bad_line(k, err, "expected a JSON array of token ids");
    uint32_t *ids = calloc(n + 1, sizeof *ids);
    if (!ids) return nb_fail_nomem(err, "token ids", n * sizeof *ids);
    nb_status s = NB_OK;
    for (size_t i = 0; i < n && !s; i++) {
        const json_t *id = json_array_get(v, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= nb_tokenizer_size(k->t)) {
            char what[96];
            snprintf(what, sizeof what, "element %zu is not a token id (0 to %u)", i,
                     nb_tokenizer_size(k->t) - 1);
            s = bad_line(k, err, what);
        } else {
            ids[i] = (uint32_t)value;
        }
    }
    nb_buf_clear(&k->text);
    if (!s) s = nb_tokenizer_decode(k->t, ids, n, k->o->skip_special, &k->text, err);
    if (!s) nb_buf_add_json(&k->out, nb_buf_str(&k->text), k->text.len);
    free(ids);
    return s;
}

static nb_status put_error(session *k, const nb_error *why)
{
    nb_buf_adds(&k->out, "{\"error\": ");
    nb_buf_add_json(&k->out, why->cause, strlen(why->cause));
    nb_buf_addc(&k->out, '}');
    return NB_OK;
}

/* A request that cannot be rendered is an answer of its own, so that the others still get theirs. */
static nb_status chat_line(session *k, const json_t *v, nb_error *err)
{
    nb_error why = {0};
    nb_buf_clear(&k->text);
    nb_status s = nb_chat_format_render(k->chat, v, (int64_t)time(NULL), &k->text, &why);
    if (!s) s = encode(k, nb_buf_str(&k->text), k->text.len, false, &why);
    if (s == NB_ERR_NOMEM) {
        *err = why;
        return s;
    }
    if (s) return put_error(k, &why);
    nb_buf_adds(&k->out, "{\"prompt\": ");
    nb_buf_add_json(&k->out, nb_buf_str(&k->text), k->text.len);
    nb_buf_adds(&k->out, ", \"ids\": ");
    put_ids(k);
    nb_buf_addc(&k->out, '}');
    return NB_OK;
}

static nb_status answer(session *k, const char *line, size_t n, nb_error *err)
{
    json_t *v = NULL;
    nb_error why = {.offset = -1};
    nb_status s = nb_json_tree(NULL, line, n, &v, &why);
    nb_buf_clear(&k->out);
    if (s == NB_ERR_NOMEM)
        *err = why;
    else if (s && k->o->chat)
        s = put_error(k, &why);
    else if (s)
        s = bad_line(k, err, why.cause);
    else
        s = k->o->decode ? decode_line(k, v, err)
            : k->o->chat ? chat_line(k, v, err)
                         : encode_line(k, v, err);
    json_decref(v);
    nb_buf_addc(&k->out, '\n');
    if (s) return s;
    if (!nb_buf_ok(&k->out)) return nb_fail_nomem(err, "an output line", k->out.len);
    if (fwrite(k->out.data, 1, k->out.len, stdout) != k->out.len || fflush(stdout) != 0)
        return nb_fail(err, NB_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    return NB_OK;
}

static nb_status each_line(session *k, nb_error *err)
{
    char *line = NULL;
    size_t cap = 0;
    nb_status s = NB_OK;
    for (ssize_t n; !s && (n = getline(&line, &cap, stdin)) >= 0;) {
        k->line++;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n) s = answer(k, line, (size_t)n, err);
    }
    if (!s && ferror(stdin)) s = nb_fail(err, NB_ERR_IO, "cannot read standard input: %s", strerror(errno));
    free(line);
    return s;
}

/* ---- the chat format ---- */

/* A JSON file of the folder; *out stays NULL when it is not there. */
static nb_status read_json(const char *dir, const char *name, json_t **out, nb_error *err)
{
    char *path = nb_path_join(dir, name);
    nb_buf text = {0};
    if (!path) return nb_fail_nomem(err, "a path", strlen(dir) + strlen(name));
    nb_status s = nb_file_slurp(path, (size_t)64 << 20, &text, err);
    if (!s) s = nb_json_tree(path, nb_buf_str(&text), text.len, out, err);
    nb_buf_free(&text);
    free(path);
    return s == NB_ERR_MISSING ? NB_OK : s;
}

/* The folder's chat format. DeepSeek-V4's encoding is for its model_type; without a config, for a vocabulary that has its role
 * tokens. */
static nb_status open_format(session *k, const char *dir, nb_error *err)
{
    static const char user[] = "<｜User｜>", assistant[] = "<｜Assistant｜>";
    json_t *config = NULL;
    nb_status s = read_json(dir, "config.json", &config, err);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!config && nb_tokenizer_id(k->t, user, sizeof user - 1) >= 0 &&
        nb_tokenizer_id(k->t, assistant, sizeof assistant - 1) >= 0)
        type = "deepseek_v4";
    if (!s) s = nb_chat_format_open(dir, type, NULL, &k->chat, err);
    json_decref(config);
    return s;
}

/* ---- the verb ---- */

static int parse_options(int argc, char **argv, options *o)
{
    enum { ADD_SPECIAL = 1, DECODE, SKIP_SPECIAL, CHAT, FORMAT };
    static const struct option table[] = {{"add-special", no_argument, NULL, ADD_SPECIAL},
                                          {"decode", no_argument, NULL, DECODE},
                                          {"skip-special", no_argument, NULL, SKIP_SPECIAL},
                                          {"chat", no_argument, NULL, CHAT},
                                          {"format", required_argument, NULL, FORMAT},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    opterr = 0;
    optind = 1;
    for (int code; (code = getopt_long(argc, argv, ":h", table, NULL)) != -1;) {
        switch (code) {
        case ADD_SPECIAL: o->add_special = true; break;
        case DECODE: o->decode = true; break;
        case SKIP_SPECIAL: o->skip_special = true; break;
        case CHAT: o->chat = true; break;
        case FORMAT: /* for scripts that give it to every verb: there is one form */
            if (strcmp(optarg, "text") != 0 && strcmp(optarg, "json") != 0)
                return nb_cli_bad_value(verb, table, code, "text or json");
            break;
        case 'h': o->help = true; return NB_EXIT_OK;
        default: return nb_cli_bad_option(verb, code, argv);
        }
    }
    if (optind == argc) return nb_cli_usage(verb, "which tokenizer? Give its folder");
    if (optind + 1 < argc) return nb_cli_usage(verb, "one folder at a time; what is '%s'?", argv[optind + 1]);
    if (o->decode && o->chat) return nb_cli_usage(verb, "--decode and --chat exclude each other");
    if (o->skip_special && !o->decode) return nb_cli_usage(verb, "--skip-special needs --decode");
    if (o->add_special && (o->decode || o->chat))
        return nb_cli_usage(verb, "--add-special is for text; %s has no use for it",
                            o->decode ? "--decode" : "--chat");
    o->dir = argv[optind];
    return NB_EXIT_OK;
}

int nb_cmd_tokenize(int argc, char **argv)
{
    options o = {0};
    session k = {.o = &o};
    nb_error err = {.offset = -1};
    char *dir = NULL;
    int code = parse_options(argc, argv, &o);
    if (code) return code;
    if (o.help) {
        fputs(usage, stdout);
        return NB_EXIT_OK;
    }
    nb_status s = nb_hub_resolve(o.dir, &dir, &err);
    if (!s) s = nb_tokenizer_open(dir, &k.t, &err);
    if (!s && !(k.s = nb_tok_scratch_new(k.t))) s = nb_fail_nomem(&err, "the tokenizer's work memory", 0);
    if (!s && o.chat) s = open_format(&k, dir, &err);
    if (!s) s = each_line(&k, &err);
    nb_buf_free(&k.out);
    nb_buf_free(&k.text);
    free(k.ids.data);
    nb_chat_format_free(k.chat);
    nb_tok_scratch_free(k.s);
    nb_tokenizer_free(k.t);
    free(dir);
    return s ? nb_cli_fail(&err) : NB_EXIT_OK;
}
