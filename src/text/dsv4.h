/* DeepSeek-V4's special tokens and the texts of its chat encoding, shared by the renderer and the parser.
 * specs/deepseek_v4.md §12; vLLM, vllm/tokenizers/deepseek_v4_encoding.py. */
#ifndef NB_TEXT_DSV4_H
#define NB_TEXT_DSV4_H

#define DSV4_BOS "<｜begin▁of▁sentence｜>"
#define DSV4_EOS "<｜end▁of▁sentence｜>"
#define DSV4_USER "<｜User｜>"
#define DSV4_ASSISTANT "<｜Assistant｜>"
#define DSV4_REMINDER "<｜latest_reminder｜>"
#define DSV4_THINK "<think>"
#define DSV4_END_THINK "</think>"
#define DSV4_DSML "｜DSML｜"
#define DSV4_CALLS "<" DSV4_DSML "tool_calls"
#define DSV4_END_CALLS "</" DSV4_DSML "tool_calls>"
#define DSV4_INVOKE "<" DSV4_DSML "invoke"
#define DSV4_END_INVOKE "</" DSV4_DSML "invoke"
#define DSV4_PARAMETER "<" DSV4_DSML "parameter"
#define DSV4_PARAMETER_END "/" DSV4_DSML "parameter" /* after a "<" */

#endif
