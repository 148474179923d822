// Megatron's command line. Every flag is translated into keys (flags_table.cpp, flags_forks.cpp), harmless, or
// refused. Weights, data and losses do not depend on harmless flags (flags_harmless.cpp). A whole command line
// (kWholeCommand) also sets Megatron's defaults if they differ from ours. Single flags next to a YAML file
// (kSingleFlags) set only their own keys.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace metroplex::megatron {

enum class Form { kWholeCommand, kSingleFlags };
enum class RefusalMode { kThrow, kNote };

struct Arguments {
  std::vector<std::string> assignments;         // "section.key=value", for Draft::assign or as load()'s overrides
  std::map<std::string, std::string> given_by;  // key -> the flag that sets it, with its value
  std::vector<std::string> notes;               // "FLAG VALUE: why it has no effect here"
};

// Tokens are --flag value..., --flag=value and --flag. The order of different flags does not matter. Throws
// base::Error("config"), first with all refused flags unless `refused` is kNote. Then it throws for missing values,
// values of the wrong type and mutually exclusive flags. A whole command must have all required flags.
Arguments parse_arguments(const std::vector<std::string>& tokens, Form form = Form::kWholeCommand,
                          RefusalMode refused = RefusalMode::kThrow);

// Whether a .py program trains a CodeGeeX ("pretrain_codegeex.py").
bool is_codegeex(const std::string& program);
// Whether a .py program does not train a GPT ("pretrain_bert.py", "multimodal/train.py").
bool is_other_model(const std::string& program);

// kText: a text of several words, quoted or not ("0:16 1B:32").
enum class ArgumentCount { kNone, kOne, kList, kThree, kText };

// `sets`: "key=value" pairs separated by ';'; $ is replaced by the flag's value. translator_flags.cpp evaluates keys
// without a section ("query_groups") after all flags are read.
struct FlagRow {
  const char* flag;
  ArgumentCount take;
  const char* sets;
};

// The flags that describe the model and its experts.
const std::vector<FlagRow>& model_flag_rows();

// Internal to this module.

struct FlagGroup {
  const char* reason;
  const char* flags;  // --flag takes no value, --flag= one, --flag+ one or more, --flag=a|b only these values
};

struct HarmlessFlag {
  std::string flag;
  ArgumentCount take;
  std::string reason;
  std::vector<std::string> only;  // the accepted values; empty: any
};

struct GivenFlag {
  const FlagRow* row;
  std::vector<std::string> values;
  bool underscores = false;  // written as --num_layers
};

const std::vector<FlagRow>& flag_table();
// Flags of Megatron's forks, part of flag_table().
const std::vector<FlagRow>& fork_rows();
const std::vector<FlagGroup>& fork_harmless();
const std::vector<HarmlessFlag>& harmless_flags();
// Searches the flags of Megatron and its forks.
const HarmlessFlag* find_harmless(const std::string& flag);
// Returns the reason for refusing a flag; "" for an unknown flag.
std::string refusal_reason(const std::string& flag);
// Returns the known flag with the most similar name; "" if none is similar.
std::string nearest_flag(const std::string& flag);

// Flags for which Megatron rejects or cannot use the value 0, while 0 means "derive" in the key that they set.
const std::vector<const char*>& positive_flags();
// Pairs of flags that Megatron's validate_args or core_transformer_config_from_args rejects.
const std::vector<std::pair<const char*, const char*>>& exclusive_flags();
// key=value of every Megatron default that differs from ours, or that a model family would preset.
const std::vector<const char*>& defaults();
const std::vector<const char*>& required_keys();
// Megatron's tokenizer types -> data.tokenizer_type.
const std::vector<std::pair<const char*, const char*>>& tokenizers();

Arguments translate(const std::vector<GivenFlag>& flags, Form form);

}  // namespace metroplex::megatron
