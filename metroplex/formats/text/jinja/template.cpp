#include "text/jinja/template.h"

#include "base/error.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

Value to_value(const nlohmann::ordered_json& json, int level) {
  MPX_CHECK(level <= kMaxValueDepth, "text", "JSON is nested deeper than ", kMaxValueDepth, " levels");
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_unsigned:
      MPX_CHECK(json.get<uint64_t>() <= INT64_MAX, "text", "the number ", json.get<uint64_t>(),
                " does not fit in 64 bits");
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_float:
      return json.get<double>();
    case nlohmann::json::value_t::string:
      return json.get_ref<const std::string&>();
    case nlohmann::json::value_t::array: {
      List items;
      for (const auto& item : json) items.push_back(to_value(item, level + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.set(key, to_value(item, level + 1));
      return Value::dict(std::move(dict));
    }
    default:
      return None{};
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json) { return to_value(json, 1); }

Template::Template(std::string_view source, std::string where)
    : where_(std::move(where)), statements_(parse_template(source, where_)) {}

Rendered Template::render(const Dict& variables, int64_t now, const Limits& limits) const {
  Interpreter run(limits, now);
  try {
    return run.run(statements_, variables);
  } catch (const base::Error& error) { fail_at(where_, run.line(), base::message_of(error)); }
}

}  // namespace metroplex::text::jinja
