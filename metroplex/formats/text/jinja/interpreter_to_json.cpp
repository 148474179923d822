// json.dumps with the arguments of transformers' filter tojson.
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

void append_unit(std::string& out, unsigned unit) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", unit & 0xffff);
  out += escape;
}

std::string json_string(Interpreter& run, const std::string& text, bool ascii) {
  run.charge(text.size() + 1);  // one byte can become six
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    static constexpr std::string_view kLetters = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
    const size_t letter = c < 0x80 ? kLetters.find(static_cast<char>(c)) : std::string_view::npos;
    if (letter != std::string_view::npos) out += {'\\', kNames[letter]};
    else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000)) append_unit(out, c);
    else if (ascii && c >= 0x10000) {
      append_unit(out, 0xd7c0 + (c >> 10));
      append_unit(out, 0xdc00 + (c & 0x3ff));
    } else {
      out.append(text, begin, at - begin);
    }
  }
  return out + '"';
}

class JsonWriter {
 public:
  JsonWriter(Interpreter& run, const JsonStyle& style) : run_(run), style_(style) {}

  void write(const Value& value, std::string& out, size_t level) const {
    switch (value.kind()) {
      case Kind::none:
        out += "null";
        return;
      case Kind::boolean:
        out += value.truth() ? "true" : "false";
        return;
      case Kind::integer:
        out += std::to_string(value.integer());
        return;
      case Kind::real:
        out += number(value.real());
        return;
      case Kind::string:
        out += json_string(run_, value.string(), style_.ascii);
        return;
      case Kind::list:
      case Kind::tuple:
        many(value.items().size(), '[', ']', out, level, [&](size_t i) { write(value.items()[i], out, level + 1); });
        return;
      case Kind::dict:
        return write_dict(value.dict(), out, level);
      default:
        break;
    }
    base::throw_error("text", base::concat("tojson: cannot convert a ", type_name(value),
                                           value.is_undefined() ? ": " + value.undefined().what : std::string()));
  }

 private:
  static std::string number(double n) {
    return std::isnan(n) ? "NaN" : std::isinf(n) ? (n > 0 ? "Infinity" : "-Infinity") : real_text(n);
  }

  template <class One>
  void many(size_t count, char open, char close, std::string& out, size_t level, One one) const {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      run_.charge_text(style_.item_separator.size() + style_.key_separator.size() + 16);
      if (i > 0) out += style_.item_separator;
      new_line(out, level + 1);
      one(i);
    }
    if (count > 0) new_line(out, level);
    out += close;
  }

  void new_line(std::string& out, size_t level) const {
    if (style_.indent < 0) return;
    run_.charge(level * style_.indent_text.size() / 4 + 1);
    out += '\n';
    for (size_t i = 0; i < level; ++i) out += style_.indent_text;
  }

  void write_dict(const Dict& dict, std::string& out, size_t level) const {
    std::vector<const Dict::Item*> items;
    for (const auto& item : dict.items()) items.push_back(&item);
    if (style_.sorted)
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    many(items.size(), '{', '}', out, level, [&](size_t i) {
      const Value& key = items[i]->first;
      MPX_CHECK(!key.is_list(), "text", "tojson: a dict has a ", type_name(key), " as a key");
      std::string name = key.is_string() ? key.string() : "";
      if (!key.is_string()) write(key, name, 0);
      out += json_string(run_, name, style_.ascii) + style_.key_separator;
      write(items[i]->second, out, level + 1);
    });
  }

  Interpreter& run_;
  const JsonStyle& style_;
};

}  // namespace

std::string to_json(Interpreter& run, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(run, style).write(value, out, 0);
  return out;
}

}  // namespace metroplex::text::jinja
