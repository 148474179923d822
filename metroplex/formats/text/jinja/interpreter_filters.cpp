// Filters for single values. interpreter_{list,text}_filters.cpp have those for lists and text layout.
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

void defined(const Value& value) { MPX_CHECK(!value.is_undefined(), "text", value.undefined().what); }

// int() and float() of a text; nullopt if Python raises ValueError.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  std::string digits(strip_trailing_space(strip_leading_space(text)));
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  for (const auto& [prefix, of] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (base == of && digits.starts_with(prefix)) digits.erase(0, 2);
  }
  if (digits.empty() || digits[0] == '-' || base < 2 || base > 36) return std::nullopt;
  int64_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return negative ? -number : number;
}

std::optional<double> parse_real(std::string_view text) {
  std::string digits(strip_trailing_space(strip_leading_space(text)));
  if (digits.starts_with('+')) digits.erase(0, 1);
  double number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Value to_int(Interpreter&, const Value& value, Arguments& arguments) {
  arguments.only(2, {"default", "base"});
  defined(value);
  const Value* fallback = arguments.find(0, "default");
  const Value* base = arguments.find(1, "base");
  std::optional<double> real;
  if (value.is_integer()) return value.integer();
  if (value.is_string()) {
    if (const auto whole =
            parse_integer(value.string(), base != nullptr && base->is_integer() ? base->integer() : 10))
      return *whole;
    real = parse_real(value.string());
  }
  if (value.is(Kind::real)) real = value.real();
  if (real && std::fabs(*real) < 9.2e18) return static_cast<int64_t>(*real);
  return fallback != nullptr ? *fallback : Value(int64_t{0});
}

Value to_float(Interpreter&, const Value& value, Arguments& arguments) {
  arguments.only(1, {"default"});
  defined(value);
  if (value.is_number()) return value.real();
  if (value.is_string()) {
    if (const auto real = parse_real(value.string())) return *real;
  }
  const Value* fallback = arguments.find(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Value absolute(Interpreter&, const Value& value, Arguments& arguments) {
  arguments.only(0);
  MPX_CHECK(value.is_number() && !(value.is_integer() && value.integer() == INT64_MIN), "text",
            "cannot compute abs of a ", type_name(value));
  return value.is_integer() ? Value(std::abs(value.integer())) : Value(std::fabs(value.real()));
}

// Rounds to a multiple of 10^digits; halves round to the even multiple.
Value round_integer_digits(const Value& value, int digits) {
  const double unit = std::pow(10.0, digits);
  if (!value.is_integer()) return std::nearbyint(value.real() / unit) * unit;
  const auto step = static_cast<int64_t>(unit);
  const int64_t rest = value.integer() % step, down = value.integer() - rest;
  const int64_t twice = 2 * std::abs(rest), sign = value.integer() < 0 ? -1 : 1;
  const bool away = twice > step || (twice == step && (down / step) % 2 != 0);
  MPX_CHECK(std::abs(down) < INT64_MAX - step, "text", "cannot round a number of more than 64 bits");
  return away ? down + sign * step : down;
}

Value round_number(Interpreter&, const Value& value, Arguments& arguments) {
  arguments.only(2, {"precision", "method"});
  const Value *precision = arguments.find(0, "precision"), *method = arguments.find(1, "method");
  const int64_t places = precision != nullptr && precision->is_integer() ? precision->integer() : 0;
  MPX_CHECK(value.is_number() && places >= -15 && places <= 15, "text", "cannot round a ", type_name(value), " to ",
            places, " places");
  const std::string how = method != nullptr ? to_text(*method) : "common";
  if (how == "common" && places < 0) return round_integer_digits(value, static_cast<int>(-places));
  if (how == "common" && value.is_integer()) return value.integer();
  if (how == "common") {
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(places), value.real());
    return std::strtod(buffer, nullptr);
  }
  MPX_CHECK(how == "ceil" || how == "floor", "text", "round: unknown method '", how, "'; use common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(places)), scaled = value.real() * scale;
  return (how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value file_size(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(1, {"binary"});
  const std::optional<double> given = value.is_string() ? parse_real(value.string()) : std::nullopt;
  MPX_CHECK(value.is_number() || given, "text", "filesizeformat: a ", type_name(value), " is not a number");
  const Value* binary = arguments.find(0, "binary");
  const bool of_1024 = binary != nullptr && binary->truth();
  const double bytes = given ? *given : value.real(), base = of_1024 ? 1024 : 1000;
  if (bytes == 1) return "1 Byte";
  char buffer[400];
  if (bytes < base) {
    std::snprintf(buffer, sizeof buffer, "%.0f Bytes", std::trunc(bytes) + 0.0);
    return run.text(buffer);
  }
  static constexpr std::string_view kPrefixes = "kMGTPEZY";
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && !(bytes < std::pow(base, i + 2))) ++i;
  std::snprintf(buffer, sizeof buffer, "%.1f", base * bytes / std::pow(base, i + 2));
  const std::string prefix = of_1024 && i == 0 ? "K" : std::string(1, kPrefixes[i]);
  return run.text(base::concat(buffer, " ", prefix, of_1024 ? "iB" : "B"));
}

Value random_item(Interpreter&, const Value&, Arguments&) {
  base::throw_error("text", "the filter 'random' is not supported, because its text differs in every run");
}

Value fallback(Interpreter&, const Value& value, Arguments& arguments) {
  arguments.only(2, {"default_value", "boolean"});
  const Value *other = arguments.find(0, "default_value"), *boolean = arguments.find(1, "boolean");
  if (!value.is_undefined() && !(boolean != nullptr && boolean->truth() && !value.truth())) return value;
  return other != nullptr ? *other : Value("");
}

Value length(Interpreter&, const Value& value, Arguments& arguments) {
  arguments.only(0);
  if (value.is_undefined()) return int64_t{0};
  if (value.is_string()) return static_cast<int64_t>(count_characters(value.string()));
  if (value.is_dict()) return static_cast<int64_t>(value.dict().items().size());
  if (value.is(Kind::iterator) && !value.is_generator()) return static_cast<int64_t>(value.iterator().items->size());
  MPX_CHECK(!value.is_generator(), "text", "a generator has no length; convert it to a list with the filter 'list'");
  MPX_CHECK(value.is_list(), "text", "a ", type_name(value), " has no length");
  return static_cast<int64_t>(value.items().size());
}

Value trim(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(1, {"chars"});
  const Value* set = arguments.find(0, "chars");
  MPX_CHECK(set == nullptr || set->is_string() || set->is(Kind::none), "text", "trim: chars must be a str");
  return text_like(value, strip(run, run.convert_text(value), set, true, true));
}

Value replace(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(3, {"old", "new", "count"});
  const Value* count = arguments.find(2, "count");
  const bool counted = count != nullptr && count->is_integer();
  const std::string from = run.convert_text(arguments.need(0, "old")),
                    to = run.convert_text(arguments.need(1, "new"));
  return replace_text(run, run.convert_text(value), from, to, counted ? count->integer() : -1);
}

Value indent(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(3, {"width", "first", "blank"});
  MPX_CHECK(value.is_string(), "text", "indent: a ", type_name(value), " is not a str");
  const Value *width = arguments.find(0, "width"), *first = arguments.find(1, "first"),
              *blank = arguments.find(2, "blank");
  std::string by(4, ' ');
  if (width != nullptr && width->is_string()) by = run.convert_text(*width);
  else if (width != nullptr && width->is_integer())
    by.assign(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1000)), ' ');
  const bool all = blank != nullptr && blank->truth();
  std::string out;
  size_t number = 0;
  for (const std::string& line : split_lines(run, run.convert_text(value) + "\n")) {
    run.charge_text(by.size() + line.size() + 4);
    const bool begins = number == 0 ? first != nullptr && first->truth() : all || !line.empty();
    out += (number > 0 ? "\n" : "") + (begins ? by : "") + line;
    ++number;
  }
  return text_like(value, std::move(out));
}

Value json(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  const Value *ascii = arguments.find(0, "ensure_ascii"), *indent = arguments.find(1, "indent"),
              *separators = arguments.find(2, "separators"), *sorted = arguments.find(3, "sort_keys");
  JsonStyle style;
  style.ascii = ascii != nullptr && ascii->truth();
  style.sorted = sorted != nullptr && sorted->truth();
  if (indent != nullptr && !indent->is(Kind::none)) {
    MPX_CHECK(indent->is_integer() || indent->is_string(), "text", "tojson: indent must be a number or a str");
    style.indent = 0;
    style.indent_text = indent->is_string()
                            ? run.convert_text(*indent)
                            : std::string(static_cast<size_t>(std::clamp<int64_t>(indent->integer(), 0, 100)), ' ');
    style.item_separator = ",";
  }
  if (separators != nullptr && !separators->is(Kind::none)) {
    const List two = elements(run, *separators);
    MPX_CHECK(two.size() == 2, "text", "tojson: separators must be two");
    style.item_separator = run.convert_text(two[0]);
    style.key_separator = run.convert_text(two[1]);
  }
  return to_json(run, value, style);
}

Value word_count(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  int64_t words = 0;
  bool inside = false;
  const std::string text = run.convert_text(value);
  for (size_t at = 0; at < text.size();) {
    const bool word = is_python_word(next_code_point(text, at));
    words += word && !inside;
    inside = word;
  }
  return words;
}

template <std::string (*Map)(std::string_view)>
Value text_filter(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  std::string text = Map(run.convert_text(value));
  run.charge(text.size() / 4);
  return text_like(value, std::move(text));
}

std::string same(std::string_view text) { return std::string(text); }

Value title_case(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  return run.text(title(run.convert_text(value), false));
}

Value safe(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  return Value::safe_text(run.convert_text(value));
}

Value format(Interpreter& run, const Value& value, Arguments& arguments) {
  return format_values(run, text_like(value, run.convert_text(value)), arguments.positional);
}

// Unlike value.name, it does not look up keys of a dict.
Value get_attribute(Interpreter& run, const Value& value, Arguments& arguments) {
  const std::string name = run.convert_text(arguments.need(0, "name"));
  if (value.is_dict() && !has_method(value, name)) return Undefined{"'dict object' has no attribute '" + name + "'"};
  return attribute(run, value, name);
}

constexpr struct {
  std::string_view name;
  Filter filter;
} kFilters[] = {{"abs", absolute},
                {"attr", get_attribute},
                {"capitalize", text_filter<capitalize>},
                {"count", length},
                {"d", fallback},
                {"default", fallback},
                {"filesizeformat", file_size},
                {"float", to_float},
                {"format", format},
                {"indent", indent},
                {"int", to_int},
                {"length", length},
                {"lower", text_filter<lower>},
                {"random", random_item},
                {"replace", replace},
                {"round", round_number},
                {"safe", safe},
                {"string", text_filter<same>},
                {"title", title_case},
                {"tojson", json},
                {"trim", trim},
                {"upper", text_filter<upper>},
                {"wordcount", word_count}};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const auto& row : kFilters) {
    if (row.name == name) return row.filter;
  }
  const Filter of_lists = find_list_filter(name);
  return of_lists != nullptr ? of_lists : find_text_filter(name);
}

}  // namespace metroplex::text::jinja
