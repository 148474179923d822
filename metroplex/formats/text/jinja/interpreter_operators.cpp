#include "text/jinja/interpreter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text::jinja {
namespace {

constexpr size_t kMaxRepeated = size_t{1} << 28;

[[noreturn]] void no_operator(const std::string& sign, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) MPX_CHECK(!value->is_undefined(), "text", value->undefined().what);
  base::throw_error("text", base::concat("a ", type_name(a), " ", sign, " a ", type_name(b), " is not defined"));
}

Value whole_numbers(const std::string& sign, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (sign == "+") overflow = __builtin_add_overflow(a, b, &out);
  if (sign == "-") overflow = __builtin_sub_overflow(a, b, &out);
  if (sign == "*") overflow = __builtin_mul_overflow(a, b, &out);
  if (sign == "//" || sign == "%") {
    MPX_CHECK(b != 0, "text", "division by zero");
    overflow = a == INT64_MIN && b == -1;
    if (!overflow) {
      const int64_t rest = a % b != 0 && (a % b < 0) != (b < 0) ? a % b + b : a % b;
      out = sign == "%" ? rest : (a - rest) / b;
    }
  }
  if (sign == "**") {
    out = 1;
    for (int64_t i = 0; i < b && !overflow && out != 0; ++i) {
      overflow = __builtin_mul_overflow(out, a, &out);
      if (a == 1 || a == -1) return a == 1 || b % 2 == 0 ? int64_t{1} : int64_t{-1};
    }
  }
  MPX_CHECK(!overflow, "text", a, " ", sign, " ", b, " does not fit in 64 bits");
  return out;
}

Value numbers(const std::string& sign, const Value& left, const Value& right) {
  if (left.is_integer() && right.is_integer() && sign != "/" && !(sign == "**" && right.integer() < 0))
    return whole_numbers(sign, left.integer(), right.integer());
  const double a = left.real(), b = right.real();
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return std::pow(a, b);
  MPX_CHECK(b != 0, "text", "division by zero");
  if (sign == "/") return a / b;
  const double rest =
      std::fmod(a, b) != 0 && (std::fmod(a, b) < 0) != (b < 0) ? std::fmod(a, b) + b : std::fmod(a, b);
  return sign == "%" ? rest : std::floor((a - rest) / b + 0.5);
}

Value repeat(Interpreter& run, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (value.is_string()) {
    const std::string& text = value.string();
    MPX_CHECK(text.empty() || count <= kMaxRepeated / text.size(), "text", "a text has more than ", kMaxRepeated,
              " bytes");
    std::string out;
    run.charge(text.size() * count / 4);
    for (size_t i = 0; !text.empty() && i < count; ++i) out += text;
    return text_like(value, std::move(out));
  }
  const size_t size = value.items().size();
  MPX_CHECK(size == 0 || count <= kMaxRepeated / size, "text", "a list has more than ", kMaxRepeated, " items");
  run.charge(16 * size * count);
  List items;
  for (size_t i = 0; size > 0 && i < count; ++i)
    items.insert(items.end(), value.items().begin(), value.items().end());
  return value.is(Kind::tuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

// A Python slice after index normalization: `count` indices from `first`, `step` apart.
struct SliceRange {
  int64_t first = 0, step = 1, count = 0;
};

SliceRange resolve_slice(int64_t size, const Value& from, const Value& to, const Value& step) {
  const auto whole = [](const Value& value, int64_t fallback) {
    if (value.is(Kind::none)) return fallback;
    MPX_CHECK(value.is_integer(), "text", "a bound of a slice is a ", type_name(value),
              "; it must be a whole number");
    return value.integer();
  };
  SliceRange places;
  places.step = whole(step, 1);
  MPX_CHECK(places.step != 0, "text", "a slice has a step of 0");
  MPX_CHECK(places.step > -(int64_t{1} << 40), "text", "a slice has a step of ", places.step, ", which is too low");
  const bool back = places.step < 0;
  const auto bounded = [&](const Value& value, int64_t fallback) {
    int64_t end = whole(value, fallback);
    if (!value.is(Kind::none) && end < 0) end += size;
    return std::clamp<int64_t>(end, back ? -1 : 0, back ? size - 1 : size);
  };
  places.first = bounded(from, back ? size - 1 : 0);
  const int64_t end = to.is(Kind::none) ? (back ? -1 : size) : bounded(to, 0);
  const int64_t distance = back ? places.first - end : end - places.first;
  const int64_t stride = back ? -places.step : places.step;
  places.count = distance > 0 ? (distance - 1) / stride + 1 : 0;
  return places;
}

std::string_view from_character(std::string_view text, int64_t first, int64_t count) {
  const auto behind = [&](size_t at, int64_t characters) {
    for (; characters > 0 && at < text.size(); --characters)
      at += code_point_size(static_cast<unsigned char>(text[at]));
    return at;
  };
  const size_t begin = behind(0, first);
  return text.substr(begin, behind(begin, count) - begin);
}

Value missing(const Value& object, const std::string& name) {
  return Undefined{base::concat("'", object.is(Kind::none) ? "None" : std::string(type_name(object)) + " object",
                                "' has no attribute '", name, "'")};
}

Value loop_attribute(const std::shared_ptr<Loop>& loop, const std::string& name) {
  const auto index = static_cast<int64_t>(loop->index), length = static_cast<int64_t>(loop->items->size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return loop->depth;
  if (name == "depth0") return loop->depth - 1;
  if (name == "previtem")
    return index > 0 ? (*loop->items)[loop->index - 1] : Value(Undefined{"there is no previous item"});
  if (name == "nextitem")
    return index + 1 < length ? (*loop->items)[loop->index + 1] : Value(Undefined{"there is no next item"});
  return missing(loop, name);
}

}  // namespace

Value arithmetic(Interpreter& run, const std::string& sign, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return numbers(sign, a, b);
  if (sign == "+" && a.is_string() && b.is_string()) {
    run.charge_text(a.string().size() + b.string().size());
    if (!a.is_safe() && !b.is_safe()) return a.string() + b.string();
    return Value::safe_text(escaped_text(run, a) + escaped_text(run, b));
  }
  if (sign == "+" && a.is_list() && a.kind() == b.kind()) {
    run.charge_items(a.items().size() + b.items().size());
    List items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is(Kind::tuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
  }
  if (sign == "*" && (a.is_string() || a.is_list()) && b.is_integer()) return repeat(run, a, b.integer());
  if (sign == "*" && (b.is_string() || b.is_list()) && a.is_integer()) return repeat(run, b, a.integer());
  if (sign == "%" && a.is_string()) return format_values(run, a, b.is(Kind::tuple) ? b.items() : List{b});
  no_operator(sign, a, b);
}

bool contains(Interpreter& run, const Value& container, const Value& item) {
  if (container.is_string()) {
    MPX_CHECK(item.is_string(), "text", "a ", type_name(item), " cannot be in a str; only a str can",
              item.is_undefined() ? " (" + item.undefined().what + ")" : "");
    return Search(run, item.string()).in(container.string()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (container.is_undefined()) return false;
  if (container.is(Kind::iterator)) {
    const auto same = [&](const Value& value) { return equal(value, item); };
    Iterator& from = container.iterator();
    const auto begin = from.items->begin() + static_cast<std::ptrdiff_t>(from.taken), end = from.items->end();
    const auto found = std::find_if(begin, end, same);
    if (from.view.empty()) from.taken = static_cast<size_t>(found - from.items->begin()) + (found != end ? 1 : 0);
    return found != end;
  }
  MPX_CHECK(container.is_list(), "text", "a ", type_name(container), " cannot contain values");
  return std::any_of(container.items().begin(), container.items().end(),
                     [&](const Value& value) { return equal(value, item); });
}

Value attribute(Interpreter& run, const Value& object, const std::string& name) {
  MPX_CHECK(!object.is_undefined(), "text", object.undefined().what, ", so it has no '", name, "'");
  if (has_method(object, name)) {
    auto method = std::make_shared<Callable>();
    method->name = name;
    method->call = [&run, object, name](Arguments& arguments) { return call_method(run, object, name, arguments); };
    return Value(std::shared_ptr<const Callable>(std::move(method)));
  }
  if (object.is_dict()) {
    const Value* value = object.dict().find(std::string_view(name));
    return value != nullptr ? *value : missing(object, name);
  }
  if (object.is(Kind::space)) {
    const auto found = object.space()->attributes.find(name);
    return found != object.space()->attributes.end() ? found->second : missing(object, name);
  }
  if (object.is(Kind::loop)) return loop_attribute(object.loop(), name);
  if (object.is(Kind::callable) && object.callable().is_macro) {
    if (name == "name") return run.text(object.callable().name);
    if (name == "arguments") {
      List names;
      for (const std::string& parameter : object.callable().parameters) names.push_back(run.text(parameter));
      return Value::tuple(std::move(names));
    }
  }
  if (object.is_group() && (name == "grouper" || name == "list")) return object.items()[name == "list" ? 1 : 0];
  return missing(object, name);
}

Value item(Interpreter& run, const Value& object, const Value& key) {
  MPX_CHECK(!object.is_undefined(), "text", object.undefined().what, ", so it has no items");
  if (object.is_dict()) {
    run.charge(key.is_string() ? key.string().size() / 16 : object.dict().items().size());
    if (const Value* value = object.dict().find(key)) return *value;
    return key.is_string() ? attribute(run, object, key.string()) : missing(object, run.convert_text(key));
  }
  if (key.is_integer() && (object.is_list() || object.is_string())) {
    const auto size =
        static_cast<int64_t>(object.is_string() ? count_characters(object.string()) : object.items().size());
    int64_t index = key.integer();
    if (index < 0) index += size;
    if (index < 0 || index >= size) return Undefined{base::concat("there is no item ", key.integer(), " of ", size)};
    if (object.is_list()) return object.items()[static_cast<size_t>(index)];
    run.charge(object.string().size() / 16);
    return text_like(object, std::string(from_character(object.string(), index, 1)));
  }
  return key.is_string() ? attribute(run, object, key.string())
                         : (run.charge(static_cast<size_t>(16 * key.weight())), missing(object, representation(key)));
}

Value slice(Interpreter& run, const Value& object, const Value& from, const Value& to, const Value& step) {
  if (!object.is_string() && !object.is_list()) {
    MPX_CHECK(!object.is_undefined(), "text", object.undefined().what, ", so it has no slices");
    base::throw_error("text",
                      base::concat("a ", type_name(object), " has no slices; only a str and a list have slices"));
  }
  if (object.is_list()) {
    const SliceRange places = resolve_slice(static_cast<int64_t>(object.items().size()), from, to, step);
    run.charge_items(static_cast<size_t>(places.count));
    List items;
    for (int64_t i = 0; i < places.count; ++i)
      items.push_back(object.items()[static_cast<size_t>(places.first + i * places.step)]);
    return object.is(Kind::tuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
  }
  const std::string& text = object.string();
  run.charge_text(text.size());
  const SliceRange places = resolve_slice(static_cast<int64_t>(count_characters(text)), from, to, step);
  if (places.step == 1) return text_like(object, std::string(from_character(text, places.first, places.count)));
  run.charge(4 * text.size());
  const auto characters = split_characters(text);
  std::string out;
  for (int64_t i = 0; i < places.count; ++i) out += characters[static_cast<size_t>(places.first + i * places.step)];
  return text_like(object, std::move(out));
}

void for_each_pair(Interpreter& run, const Value& value, const char* taker,
                   const std::function<void(const Value& key, const Value& value)>& visit) {
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().items()) visit(key, item);
    return;
  }
  for (const Value& pair : elements(run, value)) {
    const List two = elements(run, pair);
    MPX_CHECK(two.size() == 2, "text", taker, ": every item of the list must be a pair");
    visit(two[0], two[1]);
  }
}

List elements(Interpreter& run, const Value& value) {
  run.charge_items(value.is_list()     ? value.items().size()
                   : value.is_dict()   ? value.dict().items().size()
                   : value.is_string() ? count_characters(value.string())
                                       : 0);
  if (value.is_list()) return value.items();
  List items;
  if (value.is(Kind::iterator)) {
    Iterator& from = value.iterator();
    run.charge_items(from.items->size() - from.taken);
    items.assign(from.items->begin() + static_cast<std::ptrdiff_t>(from.taken), from.items->end());
    if (from.view.empty()) from.taken = from.items->size();
    return items;
  }
  if (value.is_dict()) {
    for (const auto& [key, own] : value.dict().items()) items.push_back(key);
  } else if (value.is_string()) {
    for (const std::string_view character : split_characters(value.string())) items.emplace_back(character);
  } else {
    MPX_CHECK(value.is_undefined(), "text", "a ", type_name(value), " is not iterable");
  }
  return items;
}

Value format_values(Interpreter& run, const Value& format_value, const List& values) {
  const std::string& format = format_value.string();
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const size_t end = format.find_first_not_of("0123456789.+-# ", at + 1);
    MPX_CHECK(end != std::string::npos, "text", "a format ends inside a %");
    const char kind = format[end];
    const std::string flags = format.substr(at + 1, end - at - 1);
    at = end;
    if (kind == '%') {
      out += '%';
      continue;
    }
    MPX_CHECK(used < values.size(), "text", "a format has more placeholders than its ", values.size(), " values");
    const Value& value = values[used++];
    const bool text = kind == 's' || kind == 'r', whole = kind == 'd' || kind == 'i' || kind == 'x',
               real = kind == 'f';
    MPX_CHECK((text && flags.empty()) || ((whole || real) && flags.size() <= 4 && value.is_number()), "text", "%",
              flags, kind, " of a ", type_name(value), " is not supported");
    if (text) {
      if (kind == 'r') run.charge(static_cast<size_t>(16 * value.weight()));
      const std::string plain = kind == 'r' ? representation(value) : run.convert_text(value);
      out += format_value.is_safe() && !(kind == 's' && value.is_safe()) ? escaped(plain) : plain;
      continue;
    }
    MPX_CHECK(real || std::fabs(value.real()) < 9e18, "text", "%", kind, " of ", to_text(value),
              " is not supported: the number is too large");
    char buffer[512];
    const std::string spec = "%" + flags + (real ? "f" : kind == 'x' ? "lx" : "ld");
    if (real) std::snprintf(buffer, sizeof buffer, spec.c_str(), value.real());
    else
      std::snprintf(buffer, sizeof buffer, spec.c_str(),
                    static_cast<long>(value.is_integer() ? value.integer() : static_cast<int64_t>(value.real())));
    out += buffer;
  }
  MPX_CHECK(used == values.size(), "text", "a format has fewer placeholders than its ", values.size(), " values");
  run.charge(out.size() / 4);
  return text_like(format_value, std::move(out));
}

}  // namespace metroplex::text::jinja
