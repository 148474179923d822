// Filters for single values; list_filters.cpp and text_filters.cpp have those for lists and text layout.
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
std::optional<int64_t> whole_of(std::string_view text, int64_t base) {
  std::string digits(without_trailing_space(without_leading_space(text)));
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

std::optional<double> real_of(std::string_view text) {
  std::string digits(without_trailing_space(without_leading_space(text)));
  if (digits.starts_with('+')) digits.erase(0, 1);
  double number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Value to_int(Interpreter&, const Value& v, Arguments& a) {
  a.only(2, {"default", "base"});
  defined(v);
  const Value* fallback = a.find(0, "default");
  const Value* base = a.find(1, "base");
  std::optional<double> real;
  if (v.is_integer()) return v.integer();
  if (v.is_string()) {
    if (const auto whole = whole_of(v.string(), base != nullptr && base->is_integer() ? base->integer() : 10))
      return *whole;
    real = real_of(v.string());
  }
  if (v.is(Kind::real)) real = v.real();
  if (real && std::fabs(*real) < 9.2e18) return static_cast<int64_t>(*real);
  return fallback != nullptr ? *fallback : Value(int64_t{0});
}

Value to_float(Interpreter&, const Value& v, Arguments& a) {
  a.only(1, {"default"});
  defined(v);
  if (v.is_number()) return v.real();
  if (v.is_string()) {
    if (const auto real = real_of(v.string())) return *real;
  }
  const Value* fallback = a.find(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Value absolute(Interpreter&, const Value& v, Arguments& a) {
  a.only(0);
  MPX_CHECK(v.is_number() && !(v.is_integer() && v.integer() == INT64_MIN), "text", "cannot compute abs of a ",
            type_name(v));
  return v.is_integer() ? Value(std::abs(v.integer())) : Value(std::fabs(v.real()));
}

// Rounds to a multiple of 10^digits; halves round to the even multiple.
Value rounded_before_point(const Value& v, int digits) {
  const double unit = std::pow(10.0, digits);
  if (!v.is_integer()) return std::nearbyint(v.real() / unit) * unit;
  const auto step = static_cast<int64_t>(unit);
  const int64_t rest = v.integer() % step, down = v.integer() - rest;
  const int64_t twice = 2 * std::abs(rest), sign = v.integer() < 0 ? -1 : 1;
  const bool away = twice > step || (twice == step && (down / step) % 2 != 0);
  MPX_CHECK(std::abs(down) < INT64_MAX - step, "text", "cannot round a number of more than 64 bits");
  return away ? down + sign * step : down;
}

Value rounded(Interpreter&, const Value& v, Arguments& a) {
  a.only(2, {"precision", "method"});
  const Value *precision = a.find(0, "precision"), *method = a.find(1, "method");
  const int64_t places = precision != nullptr && precision->is_integer() ? precision->integer() : 0;
  MPX_CHECK(v.is_number() && places >= -15 && places <= 15, "text", "cannot round a ", type_name(v), " to ", places,
            " places");
  const std::string how = method != nullptr ? to_text(*method) : "common";
  if (how == "common" && places < 0) return rounded_before_point(v, static_cast<int>(-places));
  if (how == "common" && v.is_integer()) return v.integer();
  if (how == "common") {
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(places), v.real());
    return std::strtod(buffer, nullptr);
  }
  MPX_CHECK(how == "ceil" || how == "floor", "text", "round: unknown method '", how, "'; use common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(places)), scaled = v.real() * scale;
  return (how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value file_size(Interpreter& run, const Value& v, Arguments& a) {
  a.only(1, {"binary"});
  const std::optional<double> given = v.is_string() ? real_of(v.string()) : std::nullopt;
  MPX_CHECK(v.is_number() || given, "text", "filesizeformat: a ", type_name(v), " is not a number");
  const Value* binary = a.find(0, "binary");
  const bool of_1024 = binary != nullptr && binary->truth();
  const double bytes = given ? *given : v.real(), base = of_1024 ? 1024 : 1000;
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

Value fallback(Interpreter&, const Value& v, Arguments& a) {
  a.only(2, {"default_value", "boolean"});
  const Value *other = a.find(0, "default_value"), *boolean = a.find(1, "boolean");
  if (!v.is_undefined() && !(boolean != nullptr && boolean->truth() && !v.truth())) return v;
  return other != nullptr ? *other : Value("");
}

Value length(Interpreter&, const Value& v, Arguments& a) {
  a.only(0);
  if (v.is_undefined()) return int64_t{0};
  if (v.is_string()) return static_cast<int64_t>(length_of(v.string()));
  if (v.is_dict()) return static_cast<int64_t>(v.dict().items().size());
  if (v.is(Kind::iterator) && !v.is_generator()) return static_cast<int64_t>(v.iterator().items->size());
  MPX_CHECK(!v.is_generator(), "text", "a generator has no length; convert it to a list with the filter 'list'");
  MPX_CHECK(v.is_list(), "text", "a ", type_name(v), " has no length");
  return static_cast<int64_t>(v.items().size());
}

Value trim(Interpreter& run, const Value& v, Arguments& a) {
  a.only(1, {"chars"});
  const Value* set = a.find(0, "chars");
  MPX_CHECK(set == nullptr || set->is_string() || set->is(Kind::none), "text", "trim: chars must be a str");
  return text_like(v, stripped(run, run.text_of(v), set, true, true));
}

Value replace(Interpreter& run, const Value& v, Arguments& a) {
  a.only(3, {"old", "new", "count"});
  const Value* count = a.find(2, "count");
  const bool counted = count != nullptr && count->is_integer();
  const std::string from = run.text_of(a.need(0, "old")), to = run.text_of(a.need(1, "new"));
  return replaced(run, run.text_of(v), from, to, counted ? count->integer() : -1);
}

Value indent(Interpreter& run, const Value& v, Arguments& a) {
  a.only(3, {"width", "first", "blank"});
  MPX_CHECK(v.is_string(), "text", "indent: a ", type_name(v), " is not a str");
  const Value *width = a.find(0, "width"), *first = a.find(1, "first"), *blank = a.find(2, "blank");
  std::string by(4, ' ');
  if (width != nullptr && width->is_string()) by = run.text_of(*width);
  else if (width != nullptr && width->is_integer())
    by.assign(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1000)), ' ');
  const bool all = blank != nullptr && blank->truth();
  std::string out;
  size_t number = 0;
  for (const std::string& line : lines_of(run, run.text_of(v) + "\n")) {
    run.pay_text(by.size() + line.size() + 4);
    const bool begins = number == 0 ? first != nullptr && first->truth() : all || !line.empty();
    out += (number > 0 ? "\n" : "") + (begins ? by : "") + line;
    ++number;
  }
  return text_like(v, std::move(out));
}

Value json(Interpreter& run, const Value& v, Arguments& a) {
  a.only(4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  const Value *ascii = a.find(0, "ensure_ascii"), *indent = a.find(1, "indent"),
              *separators = a.find(2, "separators"), *sorted = a.find(3, "sort_keys");
  JsonStyle style;
  style.ascii = ascii != nullptr && ascii->truth();
  style.sorted = sorted != nullptr && sorted->truth();
  if (indent != nullptr && !indent->is(Kind::none)) {
    MPX_CHECK(indent->is_integer() || indent->is_string(), "text", "tojson: indent must be a number or a str");
    style.indent = 0;
    style.indent_text = indent->is_string()
                            ? run.text_of(*indent)
                            : std::string(static_cast<size_t>(std::clamp<int64_t>(indent->integer(), 0, 100)), ' ');
    style.item_separator = ",";
  }
  if (separators != nullptr && !separators->is(Kind::none)) {
    const List two = elements(run, *separators);
    MPX_CHECK(two.size() == 2, "text", "tojson: separators must be two");
    style.item_separator = run.text_of(two[0]);
    style.key_separator = run.text_of(two[1]);
  }
  return to_json(run, v, style);
}

Value word_count(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  int64_t words = 0;
  bool inside = false;
  const std::string text = run.text_of(v);
  for (size_t at = 0; at < text.size();) {
    const bool word = is_python_word(next_code_point(text, at));
    words += word && !inside;
    inside = word;
  }
  return words;
}

template <std::string (*Map)(std::string_view)>
Value text_filter(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  std::string text = Map(run.text_of(v));
  run.spend(text.size() / 4);
  return text_like(v, std::move(text));
}

std::string same(std::string_view text) { return std::string(text); }

Value titled(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  return run.text(title(run.text_of(v), false));
}

Value safe(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  return Value::safe_text(run.text_of(v));
}

Value format(Interpreter& run, const Value& v, Arguments& a) {
  return formatted(run, text_like(v, run.text_of(v)), a.positional);
}

// Unlike value.name, it does not look up keys of a dict.
Value attribute_of(Interpreter& run, const Value& v, Arguments& a) {
  const std::string name = run.text_of(a.need(0, "name"));
  if (v.is_dict() && !has_method(v, name)) return Undefined{"'dict object' has no attribute '" + name + "'"};
  return attribute(run, v, name);
}

constexpr struct {
  std::string_view name;
  Filter filter;
} kFilters[] = {{"abs", absolute},
                {"attr", attribute_of},
                {"capitalize", text_filter<capitalized>},
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
                {"round", rounded},
                {"safe", safe},
                {"string", text_filter<same>},
                {"title", titled},
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
