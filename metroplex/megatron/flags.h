// Megatron's command line. Every flag is in one of three classes: translated into keys (flag_table.cpp,
// fork_flags.cpp), harmless (harmless_flags.cpp: weights, data and losses do not depend on it), or refused. A whole
// command line (kWholeCommand) also brings Megatron's defaults where they differ from ours. Single flags next to a
// YAML file (kSingleFlags) set only their own keys.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace metroplex::megatron {

enum class Form { kWholeCommand, kSingleFlags };
enum class Refused { kThrow, kNote };

struct Arguments {
  std::vector<std::string> assignments;         // "section.key=value", for Draft::assign or as load()'s overrides
  std::map<std::string, std::string> given_by;  // key -> the flag that sets it, with its value
  std::vector<std::string> notes;               // "FLAG VALUE: why it has no effect here"
};

// Tokens are --flag value..., --flag=value and --flag. Throws base::Error("config"): first with all refused flags at
// once (unless `refused` is kNote), then for values that are missing or of the wrong type, for flags that exclude
// each other, and in a whole command for required flags that are missing. The order of different flags does not
// matter.
Arguments parse_arguments(const std::vector<std::string>& tokens, Form form = Form::kWholeCommand,
                          Refused refused = Refused::kThrow);

// Whether a .py program trains a CodeGeeX ("pretrain_codegeex.py").
bool trains_codegeex(const std::string& program);
// Whether a .py program does not train a GPT ("pretrain_bert.py", "multimodal/train.py").
bool trains_another_model(const std::string& program);

// The rest is used inside this module.

// kText: words that belong together, quoted or not ("0:16 1B:32").
enum class Take { kNone, kOne, kList, kThree, kText };

// `sets`: "key=value" pairs with ; between; $ stands for the flag's value. translate_flags.cpp evaluates keys without
// a section ("query_groups") after all flags are read.
struct FlagRow {
  const char* flag;
  Take take;
  const char* sets;
};

struct FlagGroup {
  const char* reason;
  const char* flags;  // --flag takes no value, --flag= one, --flag+ one or more, --flag=a|b only these values
};

struct HarmlessFlag {
  std::string flag;
  Take take;
  std::string reason;
  std::vector<std::string> only;  // the accepted values; empty: any
};

// One flag of a command line, with its row and its values.
struct GivenFlag {
  const FlagRow* row;
  std::vector<std::string> values;
  bool underscores = false;  // written as --num_layers
};

const std::vector<FlagRow>& flag_table();
// Spellings of Megatron's forks, part of flag_table().
const std::vector<FlagRow>& fork_rows();
const std::vector<FlagGroup>& fork_harmless();
// Megatron's own.
const std::vector<HarmlessFlag>& harmless_flags();
// Megatron's and its forks'.
const HarmlessFlag* find_harmless(const std::string& flag);
// Why a flag is refused; "" for an unknown one.
std::string refusal_reason(const std::string& flag);
// The known flag with the most similar name; "" if none is similar.
std::string nearest_flag(const std::string& flag);

// Flags whose value 0 Megatron refuses or cannot run with, while 0 means "derive" in the key that they set.
const std::vector<const char*>& positive_flags();
// Pairs that Megatron's validate_args or core_transformer_config_from_args refuses.
const std::vector<std::pair<const char*, const char*>>& exclusive_flags();
// key=value of every default of Megatron that differs from ours, or that a family would preset.
const std::vector<const char*>& defaults();
const std::vector<const char*>& required_keys();
// Megatron's tokenizer types -> data.tokenizer_type.
const std::vector<std::pair<const char*, const char*>>& tokenizers();

// Assignments of flags that were read (translate_flags.cpp).
Arguments translate(const std::vector<GivenFlag>& flags, Form form);

}  // namespace metroplex::megatron
