// Python's str() and repr() of values.
#include "text/jinja/value.h"

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

bool printable_in_repr(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7f;
  const std::string_view category = general_category(c);
  return category[0] != 'C' && (category[0] != 'Z' || c == ' ');
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (printable_in_repr(c)) {
      out.append(text, begin, at - begin);
    } else {
      char escape[16];
      std::snprintf(escape, sizeof escape,
                    c < 0x100     ? "\\x%02x"
                    : c < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                    static_cast<unsigned>(c));
      out += escape;
    }
  }
  return out + quote;
}

std::string join_items(const List& items, const char* open, const char* close) {
  std::string out = open;
  for (size_t i = 0; i < items.size(); ++i) out += (i > 0 ? ", " : "") + representation(items[i]);
  return out + close;
}

std::string dict_text(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.items())
    out += (out.size() > 1 ? ", " : "") + representation(key) + ": " + representation(value);
  return out + "}";
}

}  // namespace

// The shortest digits that parse to the same number. The exponent format follows Python: below 1e-4 and from 1e16 on.
std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::fabs(number);
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number,
                                 exponent ? std::chars_format::scientific : std::chars_format::fixed)
                       .ptr;
  std::string text(buffer, end);
  if (!exponent && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return "";
  return representation(value);
}

std::string representation(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return value.truth() ? "True" : "False";
    case Kind::integer:
      return std::to_string(value.integer());
    case Kind::real:
      return real_text(value.real());
    case Kind::string:
      return value.is_safe() ? "Markup(" + quoted(value.string()) + ")" : quoted(value.string());
    case Kind::list:
      return join_items(value.items(), "[", "]");
    case Kind::tuple:
      return join_items(value.items(), "(", value.items().size() == 1 ? ",)" : ")");
    case Kind::dict:
      return dict_text(value.dict());
    case Kind::iterator:
      if (!value.is_generator()) return value.iterator().view + join_items(*value.iterator().items, "([", "])");
      break;
    default:
      break;
  }
  base::throw_error("text", base::concat("a ", type_name(value), " cannot be converted to text"));
}

}  // namespace metroplex::text::jinja
