/* What the loader does not read is refused by name, with a remedy; what is malformed is an error that says where. Nothing is
 * approximated. */
#include "tiny.h"

#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define SPLIT(behavior)                                                                                      \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"" behavior "\",\"invert\":false}"
#define TEMPLATE(single)                                                                                     \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single                                                   \
    "],\"pair\":[],\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":[1]}}}"
#define METASPACE(scheme) "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme "\"}"
#define REPLACE(pattern) "{\"type\":\"Replace\",\"pattern\":" pattern ",\"content\":\"_\"}"
#define DECODERS(parts) "{\"type\":\"Sequence\",\"decoders\":[" parts "]}"
#define FUSE "{\"type\":\"Fuse\"}"
#define STRIP(start, stop) "{\"type\":\"Strip\",\"content\":\" \",\"start\":" start ",\"stop\":" stop "}"
#define TEXT "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"

static void expect(const tiny *k, nb_status want, const char *named)
{
    nb_tokenizer *t = NULL;
    nb_error err = {0};
    nb_status s = tiny_parse(k, &t, &err);
    if (s != want || !strstr(err.cause, named))
        fail_msg("expected '%s' naming '%s', got '%s': %s", nb_status_name(want), named, nb_status_name(s),
                 err.cause);
    if (want == NB_ERR_UNSUPPORTED) assert_true(err.remedy[0]);
    assert_null(t);
}

static void unsupported_components(void **state)
{
    (void)state;
    static const struct {
        tiny k;
        const char *named;
    } cases[] = {
        {{.normalizer = "{\"type\":\"NFKC\"}"}, "normalizer NFKC"},
        {{.normalizer = REPLACE("{\"Regex\":\"a\"}")}, "normalizer Replace with a Regex"},
        {{.normalizer = REPLACE("{\"String\":\"\"}")}, "normalizer Replace with an empty pattern"},
        {{.normalizer =
              "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}"},
         "normalizer Lowercase"},
        {{.pre = "null"}, "decoder with ByteLevel, which the pre-tokenizer has not"},
        {{.pre = SEQUENCE("")}, "decoder with ByteLevel, which the pre-tokenizer has not"},
        {{.decoder = FUSE}, "decoder without ByteLevel, which the pre-tokenizer has"},
        {{.pre = SEQUENCE(TINY_BYTE_LEVEL "," METASPACE("always"))}, "Metaspace beside another component"},
        {{.pre = SEQUENCE(METASPACE("always") "," TINY_BYTE_LEVEL)}, "Metaspace beside another component"},
        {{.pre = METASPACE("last")}, "Metaspace with prepend_scheme last"},
        {{.pre = SEQUENCE("{\"type\":\"Whitespace\"}," TINY_BYTE_LEVEL)}, "pre_tokenizer Whitespace"},
        {{.pre = SEQUENCE(SPLIT("MergedWithNext") "," TINY_BYTE_LEVEL)}, "MergedWithNext"},
        {{.pre = SEQUENCE(TINY_BYTE_LEVEL "," SPLIT("Isolated"))}, "after ByteLevel"},
        {{.pre = SEQUENCE(TINY_BYTE_LEVEL "," TINY_BYTE_LEVEL)}, "after ByteLevel"},
        {{.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"}, "add_prefix_space"},
        {{.pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&]\"},\"behavior\":\"Isolated\","
                          "\"invert\":false}," TINY_BYTE_LEVEL)},
         "an empty class"},
        {{.post = "{\"type\":\"RobertaProcessing\",\"sep\":[\"a\",1],\"cls\":[\"b\",2]}"},
         "post_processor RobertaProcessing"},
        {{.post = TEMPLATE("{\"SpecialToken\":{\"id\":\"B\",\"type_id\":0}}")}, "without the text"},
        {{.post = TEMPLATE(TEXT "," TEXT)}, "another piece"},
        {{.post = TEMPLATE("{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}")}, "not about sequence A"},
        {{.post = "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(TEXT) "," TEMPLATE(TEXT) "]}"},
         "two TemplateProcessing"},
        {{.decoder = "null"}, "decoder without ByteLevel or Fuse"},
        {{.decoder = "{\"type\":\"WordPiece\"}"}, "decoder WordPiece"},
        {{.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"}," TINY_DECODER "]}"},
         "decoder ByteLevel"},
        {{.decoder = DECODERS("{\"type\":\"ByteFallback\"}," FUSE "," REPLACE("{\"String\":\"a\"}"))},
         "decoder Replace"},
        {{.decoder = DECODERS(FUSE "," STRIP("1", "1"))}, "decoder Strip at the end"},
        {{.decoder = DECODERS(STRIP("1", "0") "," FUSE)}, "decoder Strip"},
        {{.model = ",\"dropout\":0.1"}, "dropout"},
        {{.model = ",\"continuing_subword_prefix\":\"##\""}, "continuing_subword_prefix"},
        {{.model = ",\"end_of_word_suffix\":\"</w>\""}, "end_of_word_suffix"},
        {{.model = ",\"type\":\"Unigram\""}, "model Unigram"},
        {{.model = ",\"type\":\"WordPiece\""}, "model WordPiece"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(&cases[i].k, NB_ERR_UNSUPPORTED, cases[i].named);
}

static void malformed_components(void **state)
{
    (void)state;
    static const struct {
        tiny k;
        const char *named;
    } cases[] = {
        {{.normalizer = "{}"}, "normalizer: expected an object with a type"},
        {{.normalizer = "3"}, "normalizer: expected an object"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, "'normalizers' is not an array"},
        {{.normalizer = "{\"type\":\"Prepend\"}"}, "Prepend: prepend is not a string"},
        {{.normalizer = "{\"type\":\"Replace\",\"content\":\"\"}"},
         "Replace: pattern.String is not a string"},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"}, "expected replacement (one character)"},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false,\"prepend_"
                 "scheme\":\"first\"}"},
         "add_prefix_space and prepend_scheme differ"},
        {{.decoder = DECODERS(FUSE "," STRIP("-1", "0"))},
         "expected content (one character), start and stop"},
        {{.pre = "{\"type\":\"Sequence\"}"}, "'pretokenizers' is not an array"},
        {{.pre = "{\"type\":\"ByteLevel\"}"}, "add_prefix_space"},
        {{.pre =
              SEQUENCE("{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false}," TINY_BYTE_LEVEL)},
         "Split"},
        {{.pre = SEQUENCE("{\"type\":\"Digits\"}," TINY_BYTE_LEVEL)}, "individual_digits"},
        {{.post = "{\"type\":\"Sequence\"}"}, "'processors' is not an array"},
        {{.post = "{\"type\":\"TemplateProcessing\"}"}, "'single' is not an array"},
        {{.post = TEMPLATE("{\"SpecialToken\":{\"id\":\"X\",\"type_id\":0}}," TEXT)}, "no ids for 'X'"},
        {{.decoder = "{\"type\":\"Sequence\"}"}, "'decoders' is not an array"},
        {{.added = "{\"id\":1}"}, "without content"},
        {{.added = "{\"content\":\"x\"}"}, "single_word is not true or false"},
        {{.added = "7"}, "without content"},
        {{.vocab = ",\"a\":300"}, "'a' stands there twice"},
        {{.vocab = ",\"ab\":97"}, "'ab' has the id 97, which another token has"},
        {{.vocab = ",\"ab\":-1"}, "id of 'ab' is not a whole number"},
        {{.vocab = ",\"ab\":1.5"}, "id of 'ab' is not a whole number"},
        {{.vocab = ",\"ab\":\"7\""}, "id of 'ab' is not a whole number"},
        {{.merges = "\"a b\""}, "no byte-level token of the vocabulary"},
        {{.merges = "\"ab\""}, "expected \"left right\""},
        {{.merges = "\"a b c\""}, "expected \"left right\""},
        {{.merges = "\"a \""}, "empty half"},
        {{.merges = "[\"a\"]"}, "expected \"left right\""},
        {{.merges = "[\"a\",\"b\",\"c\"]"}, "expected \"left right\""},
        {{.merges = "7"}, "expected \"left right\""},
        {{.model = ",\"fuse_unk\":1"}, "model.fuse_unk: expected true or false"},
        {{.model = ",\"ignore_merges\":\"no\""}, "model.ignore_merges: expected true or false"},
        {{.model = ",\"unk_token\":3"}, "model.unk_token"},
        {{.no_bytes = true, .vocab = "\"a\":0", .model = ",\"unk_token\":\"<unk>\""},
         "unk_token is not in the vocabulary"},
        {{.config = "[]"}, "expected an object"},
        {{.config = "{"}, "not JSON"},
        {{.config = "{\"add_bos_token\":true}"}, "bos_token names no token"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(&cases[i].k, NB_ERR_FORMAT, cases[i].named);
}

static void limits(void **state)
{
    (void)state;
    nb_buf pre = {0};
    expect(&(tiny){.vocab = ",\"ab\":4194304"}, NB_ERR_LIMIT, "'ab' has the id 4194304");
    expect(&(tiny){.vocab = ",\"ab\":99999999999999999999"}, NB_ERR_FORMAT, "not a whole number");
    nb_buf_adds(&pre, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 33; i++) nb_buf_adds(&pre, "{\"type\":\"Digits\",\"individual_digits\":true},");
    nb_buf_adds(&pre, TINY_BYTE_LEVEL "]}");
    expect(&(tiny){.pre = pre.data}, NB_ERR_LIMIT, "more than 32 splits");
    expect(&(tiny){.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                                 "\"0123456789012345678901234567890123456789\"}"},
           NB_ERR_LIMIT, "a replacement more than 16 times as long");
    nb_buf_free(&pre);
}

static nb_status parse(const char *json, nb_error *err)
{
    nb_tokenizer *t = NULL;
    *err = (nb_error){.offset = -1};
    nb_status s = nb_tokenizer_parse(json, strlen(json), NULL, 0, &t, err);
    nb_tokenizer_free(t);
    return s;
}

static void malformed_files(void **state)
{
    (void)state;
    nb_error err;
    assert_int_equal(parse("", &err), NB_ERR_FORMAT);
    assert_int_equal(parse("[]", &err), NB_ERR_FORMAT);
    assert_int_equal(parse("{\"version\":\"1.0\"", &err), NB_ERR_FORMAT);
    assert_int_equal(err.offset, 16);
    assert_int_equal(parse("{} x", &err), NB_ERR_FORMAT);
    assert_int_equal(err.offset, 3);
    assert_int_equal(parse("{\"version\":\"2.0\"}", &err), NB_ERR_UNSUPPORTED);
    assert_int_equal(parse("{\"model\":{\"vocab\":{\"a\":}}}", &err), NB_ERR_FORMAT);
    assert_int_equal(err.offset, 23);
    assert_int_equal(parse("{\"model\":7}", &err), NB_ERR_FORMAT);
    assert_int_equal(parse("{\"added_tokens\":{}}", &err), NB_ERR_FORMAT);
}

/* A model without type, vocab or merges, in a file whose other parts are fine. */
static void model_without_its_parts(void **state)
{
    (void)state;
    nb_error err;
    char json[1024];
    static const char frame[] = "{\"pre_tokenizer\":" TINY_BYTE_LEVEL ",\"decoder\":" TINY_DECODER "%s}";
    snprintf(json, sizeof json, frame, "");
    assert_int_equal(parse(json, &err), NB_ERR_UNSUPPORTED);
    snprintf(json, sizeof json, frame, ",\"model\":{\"type\":\"BPE\",\"vocab\":{}}");
    assert_int_equal(parse(json, &err), NB_ERR_FORMAT);
    assert_non_null(strstr(err.cause, "no vocab and merges"));
    snprintf(json, sizeof json, frame, ",\"model\":{\"vocab\":{}}");
    assert_int_equal(parse(json, &err), NB_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsupported_components),
        cmocka_unit_test(malformed_components),
        cmocka_unit_test(limits),
        cmocka_unit_test(malformed_files),
        cmocka_unit_test(model_without_its_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
