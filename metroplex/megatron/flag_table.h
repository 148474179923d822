// Inside the room: the table behind flags.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace metroplex::megatron {

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
