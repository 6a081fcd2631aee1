/* The table of routes and the checks on a request's head. */
#include "server/routes.h"

#include <string.h>
#include <strings.h>

static const nb_route_entry routes[] = {
    {"/v1/completions", NB_SERVE_COMPLETIONS, .post = true, .guarded = true},
    {"/v1/chat/completions", NB_SERVE_CHAT, .post = true, .guarded = true},
    {"/v1/models", NB_SERVE_MODELS, .get = true, .guarded = true},
    {"/v1/models/{model}", NB_SERVE_MODEL, .get = true, .guarded = true},
    /* The same without the prefix, for clients whose base URL lacks it; as guarded as they are. */
    {"/completions", NB_SERVE_COMPLETIONS, .post = true, .guarded = true},
    {"/chat/completions", NB_SERVE_CHAT, .post = true, .guarded = true},
    {"/models", NB_SERVE_MODELS, .get = true, .guarded = true},
    {"/models/{model}", NB_SERVE_MODEL, .get = true, .guarded = true},
    {"/tokenize", NB_SERVE_TOKENIZE, .post = true},
    {"/detokenize", NB_SERVE_DETOKENIZE, .post = true},
    {"/invocations", NB_SERVE_INVOCATIONS, .post = true},
    {"/health", NB_SERVE_HEALTH, .get = true, .quiet = true},
    {"/ping", NB_SERVE_HEALTH, .get = true, .post = true, .quiet = true},
    {"/load", NB_SERVE_LOAD, .get = true, .quiet = true},
    {"/version", NB_SERVE_VERSION, .get = true, .quiet = true},
    {"/metrics", NB_SERVE_METRICS, .get = true, .quiet = true},
    {"/openapi.json", NB_SERVE_OPENAPI, .get = true},
    {"/", NB_SERVE_PAGE, .get = true},
};

const nb_route_entry *nb_route_find(const char *path, const char **arg)
{
    *arg = "";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const char *brace = strchr(routes[i].path, '{');
        size_t n = brace ? (size_t)(brace - routes[i].path) : 0;
        if (brace ? strncmp(path, routes[i].path, n) == 0 && path[n] : strcmp(path, routes[i].path) == 0) {
            *arg = brace ? path + n : "";
            return &routes[i];
        }
    }
    return NULL;
}

const char *nb_route_strip(const char *path, const char *root)
{
    while (*root == '/') root++; /* "llm", "/llm" and "/llm/" are one */
    size_t n = strlen(root);
    while (n && root[n - 1] == '/') n--;
    if (!n || *path != '/' || strncmp(path + 1, root, n) != 0) return path;
    n++;
    if (path[n] == '\0') return "/";
    return path[n] == '/' ? path + n : path;
}

bool nb_route_guarded(const char *path)
{
    static const char *const prefixes[] = {"/v1", "/v2", "/inference", "/cohere"};
    const char *arg;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(path, prefixes[i], strlen(prefixes[i])) == 0) return true;
    const nb_route_entry *e = nb_route_find(path, &arg);
    return e && e->guarded;
}

/* Compares without an early way out: how long it takes tells the length of the given key alone. */
static unsigned differ(const char *key, const char *given)
{
    size_t nk = strlen(key), ng = strlen(given), at = 0;
    unsigned d = nk != ng;
    for (size_t i = 0; i < ng; i++) {
        d |= (unsigned char)given[i] ^ (unsigned char)key[at];
        at = at + 1 < nk ? at + 1 : 0;
    }
    return d;
}

bool nb_route_authorized(const char *authorization, char *const *keys, size_t n)
{
    if (!authorization || strncasecmp(authorization, "bearer ", 7) != 0) return false;
    const char *given = authorization + 7;
    while (*given == ' ') given++;
    unsigned matches = 0;
    for (size_t i = 0; i < n; i++) matches += !differ(keys[i], given);
    return matches > 0;
}

bool nb_route_is_json(const char *value)
{
    static const char json[] = "application/json";
    if (!value) return false;
    size_t n = strcspn(value, ";");
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) n--;
    return n == sizeof json - 1 && strncasecmp(value, json, n) == 0;
}
