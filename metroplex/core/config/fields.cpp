#include "config/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/digit_groups.h"
#include "base/error.h"
#include "base/join.h"
#include "base/utf8.h"
#include "config/section_fields.h"

namespace metroplex::config {

Limits any() { return {}; }

Limits one_of(std::vector<std::string> choices) {
  Limits limits;
  limits.choices = std::move(choices);
  return limits;
}

Limits at_least(double low) { return between(low, std::numeric_limits<double>::infinity()); }

Limits above(double low) {
  Limits limits = at_least(low);
  limits.low_excluded = true;
  return limits;
}

Limits between(double low, double high) {
  Limits limits;
  limits.low = low;
  limits.high = high;
  return limits;
}

Limits from_to_below(double low, double high) {
  Limits limits = between(low, high);
  limits.high_excluded = true;
  return limits;
}

Limits above_up_to(double low, double high) {
  Limits limits = between(low, high);
  limits.low_excluded = true;
  return limits;
}

Limits or_infinite(Limits limits) {
  limits.infinite = true;
  return limits;
}

const std::vector<SectionHelp>& sections() {
  static const std::vector<SectionHelp> kSections = {
      {"run", "Processes: number of ranks, communication backend and seed."},
      {"model", "Shape of the network. Names are Megatron's. 0 means \"derived from the others\"."},
      {"peft", "Parameter-efficient fine-tuning: adapters that are trained instead of the model."},
      {"parallel", "Parallel sizes. The data-parallel size is the rest: world / (tp * pp * cp)."},
      {"optim", "Optimizer and its schedules. Lengths are in iterations or in samples, never both."},
      {"precision", "Number formats, loss scale, and checks of losses and gradients."},
      {"memory", "Activations: storage, recomputation, sharding and offload between forward and backward."},
      {"data", "Source of samples: exactly one of data_path, the per-split paths, and mock_data."},
      {"checkpoint", "Saving and loading."},
      {"train", "Training loop: batch sizes, length and logging."},
  };
  return kSections;
}

std::string section_names() {
  std::vector<std::string> names;
  for (const SectionHelp& section : sections()) names.push_back(section.name);
  return base::join(names, ", ");
}

template <class Section>
static void append(const char* name, Section& section, std::vector<Field>& list) {
  FieldList described(name);
  visit(section, described);
  for (Field& field : described.take()) list.push_back(std::move(field));
}

std::vector<Field> fields(Config& config) {
  std::vector<Field> list;
  append("run", config.run, list);
  append("model", config.model, list);
  append("peft", config.peft, list);
  append("parallel", config.parallel, list);
  append("optim", config.optim, list);
  append("precision", config.precision, list);
  append("memory", config.memory, list);
  append("data", config.data, list);
  append("checkpoint", config.checkpoint, list);
  append("train", config.train, list);
  return list;
}

std::vector<std::string> all_keys() {
  Config config;
  std::vector<std::string> keys;
  for (const Field& field : fields(config)) keys.push_back(field.key());
  return keys;
}

std::string type_name(const Field& field) {
  static constexpr const char* kNames[] = {"true or false", "an integer", "a number", "text", "a list", "a word"};
  return kNames[field.member.index()];
}

std::string number_text(double value) {
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-5 && size < 1e15);
  char digits[64];
  char* const end = digits + sizeof digits;
  const auto stop = plain ? std::to_chars(digits, end, value, std::chars_format::fixed).ptr
                          : std::to_chars(digits, end, value, std::chars_format::scientific).ptr;
  std::string text(digits, stop);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

static std::string bound_text(double bound) {
  const bool whole = std::abs(bound) < 1e15 && bound == std::floor(bound);
  return whole ? std::to_string(static_cast<int64_t>(bound)) : number_text(bound);
}

static std::string limit_text(const Limits& limits) {
  if (!limits.choices.empty()) {
    std::vector<std::string> choices = limits.choices;
    for (std::string& choice : choices) choice = choice.empty() ? "(empty)" : choice;
    return "one of " + base::join(choices, ", ");
  }
  std::vector<std::string> parts;
  if (std::isfinite(limits.low))
    parts.push_back((limits.low_excluded ? "above " : "at least ") + bound_text(limits.low));
  if (std::isfinite(limits.high))
    parts.push_back((limits.high_excluded ? "below " : "at most ") + bound_text(limits.high));
  return base::join(parts, " and ") + (limits.infinite ? ", or inf" : "");
}

std::string expectation(const Field& field) {
  const std::string limit = limit_text(field.limits);
  if (limit.empty()) return type_name(field);
  return field.limits.choices.empty() ? type_name(field) + ", " + limit : limit;
}

std::string quoted(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

namespace {
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;
}  // namespace

static std::string write(const Field& field, bool for_yaml) {
  const auto text = [&](const std::string& value) { return for_yaml ? quoted(value) : value; };
  return std::visit(Overloaded{[](const bool* value) { return std::string(*value ? "true" : "false"); },
                               [](const int64_t* value) { return std::to_string(*value); },
                               [&](const double* value) {
                                 const bool yaml_infinity = for_yaml && std::isinf(*value);
                                 return yaml_infinity ? *value < 0 ? "-.inf" : ".inf" : number_text(*value);
                               },
                               [&](const std::string* value) { return text(*value); },
                               [&](const ChoiceMember& choice) { return text(choice.text(choice.member)); },
                               [&](const std::vector<std::string>* value) {
                                 std::vector<std::string> items;
                                 for (const auto& item : *value) items.push_back(text(item));
                                 return "[" + base::join(items, ", ") + "]";
                               }},
                    field.member);
}

std::string to_yaml(const Field& field) { return write(field, true); }
std::string to_text(const Field& field) { return write(field, false); }

template <class Number>
static bool read_number(const std::string& written, Number& member) {
  const std::string text = base::without_digit_groups(written);
  const char* begin = text.data() + (text.size() > 1 && text[0] == '+' && text[1] != '-' ? 1 : 0);
  const char* end = text.data() + text.size();
  Number value{};
  const auto [stop, problem] = std::from_chars(begin, end, value);
  if (problem != std::errc() || stop != end) return false;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) return false;
  }
  member = value;
  return true;
}

bool assign_scalar(const Field& field, const std::string& text) {
  return std::visit(Overloaded{[&](bool* member) {
                                 if (text != "true" && text != "false") return false;
                                 *member = text == "true";
                                 return true;
                               },
                               [&](int64_t* member) { return read_number(text, *member); },
                               [&](double* member) {
                                 const bool infinity = field.limits.infinite && (text == ".inf" || text == "inf");
                                 if (infinity) *member = std::numeric_limits<double>::infinity();
                                 return infinity || read_number(text, *member);
                               },
                               [&](std::string* member) {
                                 *member = text;
                                 return true;
                               },
                               [&](const ChoiceMember& choice) { return choice.assign(choice.member, text); },
                               [&](std::vector<std::string>*) { return false; }},
                    field.member);
}

void copy_value(const Field& to, const Field& from) {
  if (auto* const list = std::get_if<std::vector<std::string>*>(&to.member)) {
    **list = *std::get<std::vector<std::string>*>(from.member);
    return;
  }
  MPX_ASSERT(assign_scalar(to, to_text(from)), to.key());
}

static bool inside(double value, const Limits& limits) {
  const bool low = limits.low_excluded ? value > limits.low : value >= limits.low;
  const bool high = limits.high_excluded ? value < limits.high : value <= limits.high;
  return low && high;
}

// Checkpoints store the configuration as JSON, so text must be UTF-8.
static bool is_text(const Field& field) {
  const auto* const one = std::get_if<std::string*>(&field.member);
  const auto* const list = std::get_if<std::vector<std::string>*>(&field.member);
  return (one == nullptr || base::is_utf8(**one)) &&
         (list == nullptr || std::all_of((*list)->begin(), (*list)->end(), base::is_utf8));
}

std::string broken_limit(const Field& field) {
  if (!is_text(field)) return "must be UTF-8";
  const Limits& limits = field.limits;
  const bool holds =
      std::visit(Overloaded{[&](const int64_t* value) { return inside(static_cast<double>(*value), limits); },
                            [&](const double* value) { return inside(*value, limits); },
                            [&](const std::string* value) {
                              return limits.choices.empty() ||
                                     std::count(limits.choices.begin(), limits.choices.end(), *value) > 0;
                            },
                            [](const ChoiceMember&) { return true; }, [](const auto*) { return true; }},
                 field.member);
  return holds ? "" : "must be " + expectation(field);
}

}  // namespace metroplex::config
