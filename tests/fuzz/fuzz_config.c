/* Any text as config.json: parsed, read by the architecture's checks, and every shape of its table worked out. */
#include <math.h>
#include <stdlib.h>

#include "checkpoint/arch.h"
#include "checkpoint/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool what)
{
    if (!what) abort();
}

static void work_out_shapes(const nb_config *cfg)
{
    for (size_t i = 0; i < cfg->arch->n_tensors; i++) {
        const nb_arch_tensor *t = &cfg->arch->tensors[i];
        int64_t layers = nb_arch_layers(cfg, t);
        require(layers >= 1 && nb_arch_experts(cfg, t) >= 1);
        for (int64_t l = 0; l < layers && l < 8; l++) {
            uint64_t dims[4];
            nb_error e = {0};
            if (t->when && !t->when(cfg, (int)l)) continue;
            require(nb_config_shape(cfg, t->shape, (int)l, dims, &e) || e.cause[0]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root = NULL;
    nb_config cfg;
    nb_error e;
    double v;
    if (nb_config_parse("fuzz", (const char *)data, size, &root, &e) != NB_OK) {
        require(!root && e.status != NB_OK && e.cause[0]);
        return 0;
    }
    nb_status s = nb_config_from_json(root, "fuzz", &cfg, &e);
    require(s == NB_OK || e.cause[0]);
    if (nb_config_num(&cfg, "rope_theta", 0, INFINITY, &v, NULL) == NB_OK) require(v >= 0);
    if (s == NB_OK) work_out_shapes(&cfg);
    json_decref(root);
    return 0;
}
