// Megatron's command line, translated: one table of flag -> assignments (flag_table.cpp). A whole command line
// (kWholeCommand) also brings Megatron's defaults where they differ from ours, so that a run means the same here;
// single flags beside a YAML file (kSingleFlags) set what they say and nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace metroplex::megatron {

enum class Form { kWholeCommand, kSingleFlags };

struct Arguments {
  std::vector<std::string> assignments;     // "section.key=value", for Draft::assign or as load()'s overrides
  std::vector<std::string> defining;        // not known, and what is trained would be another: not to be passed over
  std::vector<std::string> not_known_yet;   // other flags, with their values, that nothing here does today
  std::vector<std::string> without_effect;  // known, and nothing to set: "FLAG VALUE: why"
};

// Tokens are --flag value..., --flag=value and --flag. Throws base::Error("config") for a value that is missing or of
// the wrong type, for flags that contradict one another, for those that Megatron removed, and, in a whole command,
// for required ones that are missing.
Arguments parse_arguments(const std::vector<std::string>& tokens, Form form = Form::kWholeCommand);

// Whether a flag that is not known decides what is computed or learned (--moe-latent-size, --use-rope-scaling), by
// name.
bool defines_the_model(const std::string& flag);
// The known flag that an unknown one is likely to be a slip of, with `loose` a more distant one too; else "".
std::string nearest_flag(const std::string& flag, bool loose);
// Whether a known flag decides what is learned: by the sections of the keys that it sets.
bool decides_what_is_learned(const std::string& flag);
// Whether a .py program of Megatron's trains something else than a GPT ("pretrain_bert.py", "multimodal/train.py").
bool trains_another_model(const std::string& program);

// Inside the room: the table.

// kText: words that belong together, quoted or not ("0:16 1B:32").
enum class Take { kNone, kOne, kList, kThree, kText };

// `sets`: "key=value" pairs with ; between; $ stands for the flag's value. Empty: accepted, nothing to set, and `why`
// says in the end of a sentence whether it is always so or ignored.
// A key without a section ("vpp_layers") is worked out by the parser after all flags are read.
struct FlagRow {
  const char* flag;
  Take take;
  const char* sets;
  const char* why = "";
};

const std::vector<FlagRow>& flag_table();
// (flag, value): known with this value only, which is what the program does anyway.
const std::vector<std::pair<const char*, const char*>>& fixed_flags();
// (flag, hint): removed from Megatron long ago.
const std::vector<std::pair<const char*, const char*>>& removed_flags();
// key=value of every default of Megatron's that differs from ours, or that a family would preset.
const std::vector<const char*>& defaults();
const std::vector<const char*>& required_keys();
// Megatron's tokenizer types -> ours; nothing for those that are not there yet.
const std::vector<std::pair<const char*, const char*>>& tokenizers();

}  // namespace metroplex::megatron
