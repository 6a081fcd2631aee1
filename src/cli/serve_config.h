/* --config FILE: options as `name: value` lines, the part of YAML that vLLM's own examples use. What goes beyond it is refused with
 * its line, never guessed at. */
#ifndef NB_CLI_SERVE_CONFIG_H
#define NB_CLI_SERVE_CONFIG_H

#include <stddef.h>

typedef struct nb_serve_config {
    char **arg; /* [n] as a command line would say it: "--name", "value", …; owned */
    size_t n;
} nb_serve_config;

/* Reads the file: comments, `name: scalar` (plain, 'single' or "double" quoted without escapes), `name: [a, b]`, and lists of
 * `- item` lines below `name:`. true and false are --name and --no-name. Returns NB_EXIT_OK, or the exit code after having printed
 * why. Free with nb_serve_config_free either way. */
int nb_serve_config_read(const char *path, nb_serve_config *out);
void nb_serve_config_free(nb_serve_config *c);

#endif
