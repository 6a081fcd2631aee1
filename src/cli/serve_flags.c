/* Every flag of `nibble serve`. vLLM's list is that of its main branch of 2026-08 (specs/http_api.md, section 4). */
#include <stddef.h>

#include "cli/cli.h"
#include "cli/serve_options.h"

#define AT(member) offsetof(nb_serve_options, member)
#define STRING(name, member, value, help)                                                                    \
    {                                                                                                        \
        name, NB_FLAG_STRING, AT(member), help, NULL, value                                                  \
    }
#define LIST(name, member, value, help)                                                                      \
    {                                                                                                        \
        name, NB_FLAG_LIST, AT(member), help, NULL, value                                                    \
    }
#define INT(name, member, help)                                                                              \
    {                                                                                                        \
        name, NB_FLAG_INT, AT(member), help, NULL, "N"                                                       \
    }
#define BYTES(name, member, help)                                                                            \
    {                                                                                                        \
        name, NB_FLAG_BYTES, AT(member), help, NULL, "BYTES"                                                 \
    }
#define REAL(name, member, value, help)                                                                      \
    {                                                                                                        \
        name, NB_FLAG_REAL, AT(member), help, NULL, value                                                    \
    }
#define SWITCH(name, member, help)                                                                           \
    {                                                                                                        \
        name, NB_FLAG_SWITCH, AT(member), help, NULL, NULL                                                   \
    }
#define NOT(name, member, help)                                                                              \
    {                                                                                                        \
        name, NB_FLAG_NOT, AT(member), help, NULL, NULL                                                      \
    }
#define NOTED(name, why)                                                                                     \
    {                                                                                                        \
        name, NB_FLAG_NOTED, 0, why, NULL, NULL                                                              \
    }
#define NOTED_SWITCH(name, why)                                                                              \
    {                                                                                                        \
        name, NB_FLAG_NOTED_SWITCH, 0, why, NULL, NULL                                                       \
    }
#define ONLY(name, value, instead)                                                                           \
    {                                                                                                        \
        name, NB_FLAG_ONLY, 0, instead, value, NULL                                                          \
    }
#define REFUSED(name, instead)                                                                               \
    {                                                                                                        \
        name, NB_FLAG_REFUSED, 0, instead, NULL, NULL                                                        \
    }
#define REFUSED_SWITCH(name, instead)                                                                        \
    {                                                                                                        \
        name, NB_FLAG_REFUSED_SWITCH, 0, instead, NULL, NULL                                                 \
    }
/* A heading of the help. */
#define PART(title)                                                                                          \
    {                                                                                                        \
        NULL, NB_FLAG_HELP, 0, title, NULL, NULL                                                             \
    }

#define ONE_MACHINE                                                                                          \
    "this build serves from one machine's CPUs: run one server a machine behind a load balancer"
#define PROXY "put a reverse proxy with TLS in front (docs/operations.md)"
#define LATER "not in this build"

const nb_flag nb_serve_flags[] = {
    PART("Model"),
    STRING("model", model_flag, "DIR", "the same as DIR"),
    STRING("tokenizer", tokenizer, "DIR", "take the tokenizer from another folder"),
    STRING("arith", arith, "A", "exact, bf16, int8, w4a4, w4a4-dynamic or auto (default, bf16)"),
    STRING("scales", scales, "S",
           "input scales of w4a4: checkpoint (default), warmup, dynamic, or a file of nibble calibrate"),
    {"dequant", NB_FLAG_MORE, AT(dequant), "load linears whose names match as BF16: '*attn*' (repeatable)",
     NULL, "PATTERN"},
    STRING("packed-cache", packed_cache, "FILE",
           "keep packed weights there for the next start, or auto: nibble-packed.cache in DIR"),
    STRING("act-dtype", act_dtype, "D", "f32 (default) or bf16: what passes between operators"),
    STRING("quant-input", quant_input, "D", "f32 (default) or bf16: what w4a4's quantiser receives"),
    STRING("kernels", kernels, "K", "auto (default), generic, " NB_CLI_KERNELS),
    INT("threads", threads, "threads (default: one a core that affinity and cgroup allow)"),

    PART("Size"),
    STRING("max-model-len", max_model_len, "N",
           "tokens of the longest request, 1k = 1000, 1K = 1024 (default: the model's own); auto or -1: what "
           "fits"),
    INT("max-num-seqs", max_seqs, "sequences that run at once (256, or fewer where each takes much memory)"),
    INT("max-num-batched-tokens", max_rows, "tokens of one step (512, or --max-num-seqs where that is more)"),
    BYTES("memory", memory,
          "for everything, e.g. 12GiB (default: 92 % of what machine and cgroup have free)"),
    REAL("gpu-memory-utilization", memory_share, "X", "that share (0.92); of the host's memory here"),
    BYTES("kv-cache-memory-bytes", kv_bytes, "for the KV cache alone"),
    INT("num-gpu-blocks-override", blocks, "KV blocks of 16 tokens, whatever they take"),
    SWITCH("enable-prefix-caching", prefix_cache, "requests share the state of equal beginnings (on)"),
    INT("long-prefill-token-threshold", chunk_limit,
        "most prompt tokens of one request in a step while others wait (0: no limit)"),
    STRING("scheduling-policy", policy, "P", "fcfs (default) or priority"),
    SWITCH("reserve-prompt-only", reserve_prompt,
           "start a request when its prompt fits, and preempt when memory runs out, as vLLM does; without it "
           "the answer's\n"
           "                                memory is reserved too"),
    INT("max-num-queued-reqs", queue_requests,
        "requests that may be here at once; one more gets 503 (4 x max-num-seqs, at least 1024; 0: no "
        "bound)"),
    INT("max-num-queued-tokens", queue_tokens,
        "prompt tokens that may wait at once (64 x max-model-len; 0: no bound)"),

    PART("HTTP"),
    STRING("host", host, "ADDRESS", "where to listen (default: every address)"),
    INT("port", port, "8000; 0 takes a free one"),
    STRING("uds", uds, "PATH", "listen on a Unix socket instead"),
    LIST("api-key", api_keys, "KEY...",
         "who asks /v1 must send one of these as a bearer token (also VLLM_API_KEY)"),
    STRING("root-path", root_path, "PATH", "the prefix under which a proxy shows this server"),
    STRING("allowed-origins", origins, "JSON", "CORS, a JSON list ([\"*\"])"),
    STRING("allowed-methods", methods, "JSON", "likewise"),
    STRING("allowed-headers", headers, "JSON", "likewise"),
    SWITCH("allow-credentials", credentials, "CORS with credentials"),
    SWITCH("enable-request-id-headers", request_ids, "answers carry X-Request-Id"),
    INT("max-connections", max_connections, "connections at once (4096)"),
    BYTES("max-body", max_body, "of one request (32MiB)"),
    REAL("idle-timeout", idle_seconds, "S", "a connection without a request is closed after S seconds (75)"),
    REAL("slow-client-timeout", slow_seconds, "S",
         "for a request's headers, and for how long a client may send a body or read an answer too slowly "
         "(30)"),
    REAL("slow-client-rate", slow_rate, "B", "too slowly: less than B bytes a second (4096)"),
    REAL("stream-comment-interval", ping_seconds, "S",
         "a stream that waits gets `: keep-alive` every S seconds (10)"),
    REAL("health-timeout", health_seconds, "S", "a step that takes longer makes /health say 503 (60)"),
    REAL("shutdown-timeout", shutdown_seconds, "S",
         "what is under way at SIGTERM may go on for S seconds (0: it is aborted)"),
    INT("workers", workers, "threads for templates and tokenising (2)"),

    PART("API"),
    LIST("served-model-name", names, "NAME...",
         "names that requests may use; answers carry the first (default: DIR)"),
    STRING("generation-config", generation, "G",
           "auto (default: the model folder's), vllm (none), or a folder"),
    STRING("override-generation-config", generation_override, "JSON",
           "defaults over that: {\"temperature\": 0.5}"),
    STRING("chat-template", chat_template, "T",
           "a template's file, or the template itself (default: the model folder's)"),
    SWITCH("trust-request-chat-template", trust_template, "requests may bring a template"),
    STRING("default-chat-template-kwargs", template_kwargs, "JSON",
           "variables for the template, when a request has none"),
    STRING("response-role", response_role, "ROLE", "assistant"),
    SWITCH("enable-auto-tool-choice", auto_tools, "tool_choice auto; needs --tool-call-parser"),
    SWITCH("exclude-tools-when-tool-choice-none", exclude_tools,
           "tool_choice none keeps the tools out of the prompt, too"),
    STRING("tool-call-parser", tool_parser, "P", "how tool calls are written (an unknown one lists them)"),
    STRING("reasoning-parser", reasoning_parser, "P", "how reasoning is written (an unknown one lists them)"),
    {"max-logprobs", NB_FLAG_SIGNED, AT(max_logprobs), "20; -1: the whole vocabulary", NULL, "N"},
    SWITCH("enable-prompt-tokens-details", prompt_details, "usage tells cached tokens"),
    SWITCH("enable-force-include-usage", force_usage, "every stream ends with usage"),
    SWITCH("return-tokens-as-token-ids", tokens_as_ids, "log-probabilities name tokens token_id:N"),
    INT("seed", seed, "of requests without one (0)"),

    PART("Logs"),
    STRING("log-format", log_format, "F", "text (default) or json"),
    STRING("uvicorn-log-level", log_level, "L", "debug, info (default), warning, error"),
    SWITCH("disable-uvicorn-access-log", no_access, "no line for each request"),
    SWITCH("disable-log-stats", no_stats, "no throughput line each 10 seconds"),
    SWITCH("quiet", quiet, "warnings alone"),
    {"config", NB_FLAG_CONFIG, 0, "options from a file, `name: value` a line; the command line wins", NULL,
     "FILE"},
    {"help", NB_FLAG_HELP, 0, NULL, NULL, NULL},

    /* Accepted: nothing here depends on them. */
    NOTED_SWITCH("trust-remote-code", "no code of a model folder is ever run"),
    NOTED("tokenizer-mode", "there is one tokenizer, and it is the fast one"),
    NOTED("dtype", "the arithmetic is --arith's, and --act-dtype's"),
    NOTED("quantization", "the formats are read from the files, tensor by tensor"),
    NOTED("kv-cache-dtype", "the cache is F32"),
    NOTED("prefix-caching-hash-algo", "ids are compared, so that no hash can collide"),
    NOTED("load-format", "safetensors are what is read"),
    NOTED("block-size", "a block is 16 tokens"),
    NOTED("chat-template-content-format", "it is found out from the template"),
    NOTED("watermark", "memory is reserved before a request starts"),
    NOTED("stream-interval", "each token is sent when it is there"),
    NOTED("max-log-len", "prompts are not logged"),
    NOTED("swap-space", "nothing is swapped"),
    NOTED("cpu-offload-gb", "everything is in the CPU's memory"),
    NOTED("download-dir", "nothing is downloaded"),
    NOTED("compilation-config", "nothing is compiled"),
    NOTED("distributed-executor-backend", "there is one process"),
    NOTED("optimization-level", "nothing is compiled"),
    NOTED_SWITCH("enforce-eager", "there are no graphs"),
    NOTED_SWITCH("enable-chunked-prefill", "prompts always come in chunks"),
    NOTED_SWITCH("async-scheduling", "steps are scheduled one by one"),
    NOTED_SWITCH("scheduler-reserve-full-isl", "a whole prompt's memory is always reserved"),
    NOTED_SWITCH("enable-server-load-tracking", "/load always counts"),
    NOTED_SWITCH("enable-log-requests", "prompts are not logged"),
    NOTED_SWITCH("disable-log-requests", "prompts are not logged"),
    NOTED_SWITCH("disable-cascade-attn", "there is none"),
    NOTED_SWITCH("disable-cascade-attention", "there is none"),
    NOTED("device", "this build computes on CPUs"),
    NOTED("hf-token", "nothing is downloaded"),
    NOTED("code-revision", "no code of a model folder is ever run"),
    NOTED("config-format", "config.json is what is read"),
    NOTED("model-impl", "the models are built in"),
    NOTED("model-loader-extra-config", "safetensors are what is read"),
    NOTED("safetensors-load-strategy", "each tensor is read once"),
    NOTED("ignore-patterns", "safetensors are what is read"),
    NOTED("max-parallel-loading-workers", "all threads read"),
    NOTED_SWITCH("use-tqdm-on-load", "the log tells what is loaded"),
    NOTED("mamba-cache-dtype", "the cache is F32"),
    NOTED("mamba-ssm-cache-dtype", "the cache is F32"),
    NOTED("mamba-block-size", "a block is 16 tokens"),
    NOTED_SWITCH("calculate-kv-scales", "the cache is F32"),
    NOTED("kv-offloading-size", "everything is in the CPU's memory"),
    NOTED("kv-offloading-backend", "everything is in the CPU's memory"),
    NOTED_SWITCH("disable-hybrid-kv-cache-manager", "each layer's state has its own size"),
    NOTED("max-num-partial-prefills", "prompts are taken in the order in which they came"),
    NOTED("max-long-partial-prefills", "prompts are taken in the order in which they came"),
    NOTED("max-seq-len-to-capture", "there are no graphs"),
    NOTED_SWITCH("disable-custom-all-reduce", "there is one process"),
    NOTED("master-addr", "there is one process"),
    NOTED("master-port", "there is one process"),
    NOTED("all2all-backend", "there is one process"),
    NOTED_SWITCH("enable-eplb", "there is one process"),
    NOTED_SWITCH("enable-dbo", "there is one process"),
    NOTED_SWITCH("disable-frontend-multiprocessing", "there is one process"),
    NOTED_SWITCH("disable-fastapi-docs", "/openapi.json is all there is of them"),
    NOTED("h11-max-incomplete-event-size", "heads have at most 64 KiB"),
    NOTED("h11-max-header-count", "heads have at most 256 lines"),
    NOTED("log-config-file", "--log-format says how lines look"),
    NOTED("disable-access-log-for-endpoints", "probes and metrics are never logged"),
    NOTED_SWITCH("enable-log-outputs", "answers are not logged"),
    NOTED_SWITCH("enable-log-deltas", "answers are not logged"),
    NOTED_SWITCH("log-error-stack", "errors tell their cause"),
    NOTED("otlp-traces-endpoint", "there are no traces; /metrics has the times"),
    NOTED("collect-detailed-traces", "there are no traces; /metrics has the times"),
    NOTED("show-hidden-metrics-for-version", "no metric is hidden"),
    NOTED_SWITCH("enable-reasoning", "--reasoning-parser alone decides"),
    NOTED("guided-decoding-backend", "constrained output is " LATER ": requests for it get a 400"),
    NOTED("max-loras", "adapters are " LATER),
    NOTED("max-lora-rank", "adapters are " LATER),
    NOTED("lora-dtype", "adapters are " LATER),
    NOTED("mm-processor-kwargs", "models are served as text"),
    NOTED("mm-processor-cache-gb", "models are served as text"),
    NOTED("allowed-local-media-path", "models are served as text"),
    NOTED_SWITCH("language-model-only", "models are served as text"),

    /* One value alone. */
    ONLY("tensor-parallel-size", "1", ONE_MACHINE),
    ONLY("tp", "1", ONE_MACHINE),
    ONLY("pipeline-parallel-size", "1", ONE_MACHINE),
    ONLY("pp", "1", ONE_MACHINE),
    ONLY("data-parallel-size", "1", ONE_MACHINE),
    ONLY("dp", "1", ONE_MACHINE),
    ONLY("api-server-count", "1", "one process serves: --workers N gives it more threads"),
    ONLY("logprobs-mode", "raw_logprobs",
         "log-probabilities are the model's own, before penalties and temperature"),
    ONLY("decode-context-parallel-size", "1", ONE_MACHINE),
    ONLY("nnodes", "1", ONE_MACHINE),
    ONLY("node-rank", "0", ONE_MACHINE),
    ONLY("runner", "generate", "models that embed or classify are not in this build"),
    ONLY("task", "generate", "models that embed or classify are not in this build"),

    /* Refused: leaving them out would change what the user gets. */
    REFUSED("revision", "give the revision with the name: org/name@REVISION"),
    REFUSED("tokenizer-revision", "give the revision with the name: --tokenizer org/name@REVISION"),
    REFUSED("hf-overrides", "edit config.json in a copy of the folder (its weights may be links)"),
    REFUSED("hf-config-path", "edit config.json in a copy of the folder (its weights may be links)"),
    REFUSED("ssl-keyfile", PROXY),
    REFUSED("ssl-certfile", PROXY),
    REFUSED("ssl-ca-certs", PROXY),
    REFUSED("ssl-cert-reqs", PROXY),
    REFUSED("middleware", PROXY),
    REFUSED_SWITCH("enable-lora", "merge the adapter into the weights first; adapters are " LATER),
    REFUSED("lora-modules", "merge the adapter into the weights first; adapters are " LATER),
    REFUSED("speculative-config", "speculative decoding is " LATER ": leave it out"),
    REFUSED("structured-outputs-config", "constrained output is " LATER ": leave it out"),
    REFUSED("kv-transfer-config", "state does not leave the process: leave it out"),
    REFUSED("kv-events-config", "state does not leave the process: leave it out"),
    REFUSED("logits-processors", "no code of others is ever run: leave it out"),
    REFUSED("logits-processor-pattern", "no code of others is ever run: leave it out"),
    REFUSED("reasoning-parser-plugin", "parsers are built in: --reasoning-parser lists them"),
    REFUSED("tool-server", "the client calls the tools: leave it out"),
    REFUSED_SWITCH("enable-prompt-embeds", "requests send text or token ids: leave it out"),
    REFUSED_SWITCH("skip-tokenizer-init", "text is what is served: leave it out"),
    REFUSED_SWITCH("disable-sliding-window",
                   "windows are the model's: leave it out, or give --max-model-len"),
    REFUSED("limit-mm-per-prompt", "images and sound are " LATER ": leave it out"),
    REFUSED("tool-parser-plugin", "parsers are built in: --tool-call-parser lists them"),
    REFUSED_SWITCH("enable-expert-parallel", ONE_MACHINE),
    REFUSED_SWITCH("ep", ONE_MACHINE),
    REFUSED_SWITCH("enable-sleep-mode", "stop the server and start it again"),
    REFUSED_SWITCH("headless", ONE_MACHINE),
    REFUSED_SWITCH("enable-tokenizer-info-endpoint", "read tokenizer_config.json in the model's folder"),
};

const size_t nb_serve_n_flags = sizeof nb_serve_flags / sizeof *nb_serve_flags;
