// The list of all keys. A line of <section>_keys.inc has type, name, default, limits and help. The section's struct,
// YAML, --section.key=value, --help, the saved run and the per-key checks all use this list.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// Limits of a single value; rules between keys are in validate.h.
struct Limits {
  std::vector<std::string> choices;  // valid strings, or the words of a Choice; empty: any text
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  bool high_excluded = false;
  bool infinite = false;  // inf is allowed
};

Limits any();
Limits one_of(std::vector<std::string> choices);
Limits at_least(double low);
Limits above(double low);
Limits between(double low, double high);        // [low, high]
Limits from_to_below(double low, double high);  // [low, high)
Limits above_up_to(double low, double high);    // (low, high]
Limits or_infinite(Limits limits);

struct ChoiceMember {
  void* member;
  const char* (*text)(const void* member);
  bool (*assign)(void* member, const std::string& text);  // false: not a word of the table
};

using Member = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, ChoiceMember>;

// One key of a Config object. Valid while that object lives.
struct Field {
  std::string section;
  std::string name;
  Member member;
  std::string help;
  Limits limits;

  std::string key() const { return section + "." + name; }
};

struct SectionHelp {
  std::string name;
  std::string help;
};

const std::vector<SectionHelp>& sections();
std::string section_names();  // "run, model, ..."
std::vector<Field> fields(Config& config);
std::vector<std::string> all_keys();

// type_name returns "an integer", "true or false", ...; expectation adds the limits: "an integer, at least 1".
std::string type_name(const Field& field);
std::string expectation(const Field& field);

// Returns the value in YAML syntax. Doubles round-trip bit for bit (infinity is .inf). Text is always quoted.
std::string to_yaml(const Field& field);
// Returns the value for display: text without quotes, lists with commas.
std::string to_text(const Field& field);
std::string quoted(const std::string& text);
// Returns the shortest text that reads back to the same double; a whole number keeps ".0".
std::string number_text(double value);

// Parses one scalar into a field that is not a list. Returns false and leaves the field unchanged if the text is
// invalid.
bool assign_scalar(const Field& field, const std::string& text);

void copy_value(const Field& to, const Field& from);

// Returns "" if the value is within the field's limits, else the violated rule.
std::string broken_limit(const Field& field);

// Returns help for a section, a key ("model.num_layers"), or everything ("" or "all"). Throws base::Error with the
// nearest name for other topics.
std::string help(const std::string& topic);

}  // namespace metroplex::config
