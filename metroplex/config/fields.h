// Every knob, once: a line of <section>_keys.inc says type, name, default, what the value may be, and a help
// paragraph. The section's struct is made of it, and YAML, --section.key=value, --help, the saved run and the per-key
// checks all walk the same list.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// What one value may be by itself; rules between keys live in validate.h.
struct Limits {
  std::vector<std::string> choices;  // of a string, and the words of a Choice; empty: any text
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  bool high_excluded = false;
  bool infinite = false;  // inf is a value
};

Limits any();
Limits one_of(std::vector<std::string> choices);
Limits at_least(double low);
Limits above(double low);
Limits between(double low, double high);        // [low, high]
Limits from_to_below(double low, double high);  // [low, high)
Limits above_up_to(double low, double high);    // (low, high]
Limits or_infinite(Limits limits);

// A Choice (choice.h) of whatever enum.
struct ChoiceMember {
  void* member;
  const char* (*text)(const void* member);
  bool (*assign)(void* member, const std::string& text);  // false: no word of the table
};

using Member = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, ChoiceMember>;

// One knob of one Config object. Valid as long as that object is.
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

// "an integer", "true or false", ...; and with the limits: "an integer, at least 1".
std::string type_name(const Field& field);
std::string expectation(const Field& field);

// The value as YAML writes it. Doubles come back bit for bit (infinity is .inf); text is always quoted.
std::string to_yaml(const Field& field);
// The value as a person reads it: text without quotes, lists with commas.
std::string to_text(const Field& field);
std::string quoted(const std::string& text);
// The fewest digits that read back to the same double; a whole number keeps ".0".
std::string number_text(double value);

// Reads one scalar into a field that is no list. False when it is not one; the field is then unchanged.
bool assign_scalar(const Field& field, const std::string& text);

// Copies the value of the same field of another Config.
void copy_value(const Field& to, const Field& from);

// "" when the value is inside the field's own limits, else the rule it breaks.
std::string broken_limit(const Field& field);

// Help for one section, for one key ("model.num_layers"), or for all of them ("" or "all"). Throws base::Error with
// the nearest name for anything else.
std::string help(const std::string& topic);

}  // namespace metroplex::config
