// Filters that take or give lists.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "text/jinja/interpreter.h"

namespace metroplex::text::jinja {
namespace {

bool given_true(const Arguments& a, size_t place, std::string_view name) {
  const Value* value = a.find(place, name);
  return value != nullptr && value->truth();
}

// "a.b.0" of a value, as the filters with an attribute take it.
Value path_of(Interpreter& run, const Value& value, const Value& path, const Value* fallback = nullptr) {
  const auto member = [&](const Value& of, const Value& key) {
    const Value found = item(run, of, key);
    return found.is_undefined() && fallback != nullptr ? *fallback : found;
  };
  if (path.is_integer()) return member(value, path);
  const std::string names = run.text_of(path);
  Value at = value;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const bool number =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
    at = member(at, number ? Value(int64_t{std::stol(name)}) : Value(name));
    begin = end + 1;
  }
  return at;
}

// What is left of the arguments behind the first `count`.
Arguments rest_of(const Arguments& a, size_t count, const std::string& callee) {
  Arguments rest;
  rest.callee = callee;
  rest.named = a.named;
  for (size_t i = count; i < a.positional.size(); ++i) rest.positional.push_back(a.positional[i]);
  return rest;
}

Value map(Interpreter& run, const Value& v, Arguments& a) {
  List out;
  if (!v.truth()) return Value::list({});  // also None, false and 0
  if (const Value* path = a.find(SIZE_MAX, "attribute"); path != nullptr && a.positional.empty()) {
    a.only(0, {"attribute", "default"});
    const Value* fallback = a.find(SIZE_MAX, "default");
    if (fallback != nullptr && fallback->is(Kind::none)) fallback = nullptr;
    for (const Value& value : elements(run, v)) {
      out.push_back(path_of(run, value, *path, fallback));
      run.spend(1);
    }
    return run.list(std::move(out));
  }
  const std::string name = run.text_of(a.need(0, "name"));
  for (const Value& value : elements(run, v)) {
    Arguments rest = rest_of(a, 1, name);
    out.push_back(run.call_filter(name, value, rest));
    run.spend(1);
  }
  return run.list(std::move(out));
}

// select, reject, selectattr, rejectattr.
Value chosen(Interpreter& run, const Value& v, const Arguments& a, bool by_attribute, bool wanted) {
  if (!v.truth()) return Value::list({});  // also None, false and 0
  const size_t skip = by_attribute ? 1 : 0;
  const bool has_test = a.positional.size() > skip;
  const std::string name = has_test ? run.text_of(a.positional[skip]) : "";
  const Arguments rest = rest_of(a, skip + 1, name);
  List out;
  for (const Value& value : elements(run, v)) {
    const Value seen = by_attribute ? path_of(run, value, a.need(0, "attribute")) : value;
    const bool holds = has_test ? run.call_test(name, seen, rest) : seen.truth();
    if (holds == wanted) out.push_back(value);
    run.spend(1);
  }
  return run.list(std::move(out));
}

template <bool ByAttribute, bool Wanted>
Value choose(Interpreter& run, const Value& v, Arguments& a) {
  return chosen(run, v, a, ByAttribute, Wanted);
}

Value join(Interpreter& run, const Value& v, Arguments& a) {
  a.only(2, {"d", "attribute"});
  const Value *between = a.find(0, "d"), *path = a.find(1, "attribute");
  const std::string separator = between != nullptr ? run.text_of(*between) : "";
  std::string out;
  bool first = true;
  for (const Value& value : elements(run, v)) {
    run.pay_text(separator.size() + 4);
    if (!first) out += separator;
    first = false;
    out += run.text_of(path != nullptr && !path->is(Kind::none) ? path_of(run, value, *path) : value);
  }
  return out;
}

Value first_or_last(Interpreter& run, const Value& v, const Arguments& a, bool last) {
  a.only(0);
  const List items = elements(run, v);
  if (items.empty())
    return Undefined{last ? "there is no last item, the sequence is empty"
                          : "there is no first item, the sequence is empty"};
  return last ? items.back() : items.front();
}

Value first(Interpreter& run, const Value& v, Arguments& a) { return first_or_last(run, v, a, false); }
Value last(Interpreter& run, const Value& v, Arguments& a) { return first_or_last(run, v, a, true); }

Value list(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  return run.list(elements(run, v));
}

Value items(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  if (v.is_undefined()) return Value::list({});
  MPX_CHECK(v.is_dict(), "text", "items of a ", type_name(v), "; it takes a dict");
  run.pay_items(3 * v.dict().items().size());
  List out;
  for (const auto& [key, value] : v.dict().items()) out.push_back(Value::tuple({key, value}));
  return Value::list(std::move(out));
}

Value reverse(Interpreter& run, const Value& v, Arguments& a) {
  a.only(0);
  List out = elements(run, v);
  std::reverse(out.begin(), out.end());
  if (!v.is_string()) return run.list(std::move(out));
  std::string text;
  for (const Value& character : out) text += character.string();
  return run.text(std::move(text));
}

// Of comparing all in `v` with as many others as a sort does.
void pay_sort(Interpreter& run, const Value& v) {
  const auto weight = static_cast<size_t>(v.weight());
  run.spend(4 * weight * static_cast<size_t>(std::bit_width(weight)));
}

Value folded(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.string())) : value;
}

// The attributes "a,b" of a sort; None: the value itself.
List sort_paths(Interpreter& run, const Value* attribute) {
  if (attribute == nullptr || !attribute->is_string()) return {attribute != nullptr ? *attribute : Value(None{})};
  List paths;
  const std::string& names = attribute->string();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    run.spend(1);
    paths.emplace_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

// As Python compares lists: undefined values are equal.
bool keys_less(const List& a, const List& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = (a[i].is_undefined() && b[i].is_undefined()) || equal(a[i], b[i]);
    if (!same) return less(a[i], b[i]);
  }
  return false;
}

Value sort(Interpreter& run, const Value& v, Arguments& a) {
  a.only(3, {"reverse", "case_sensitive", "attribute"});
  const bool backwards = given_true(a, 0, "reverse"), sensitive = given_true(a, 1, "case_sensitive");
  const Value* path = a.find(2, "attribute");
  pay_sort(run, v);
  std::vector<std::pair<List, Value>> keyed;
  for (const Value& value : elements(run, v)) {
    List keys;
    for (const Value& one : sort_paths(run, path))
      keys.push_back(folded(one.is(Kind::none) ? value : path_of(run, value, one), sensitive));
    keyed.emplace_back(std::move(keys), value);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return backwards ? keys_less(y.first, x.first) : keys_less(x.first, y.first);
  });
  List out;
  for (auto& pair : keyed) out.push_back(std::move(pair.second));
  return run.list(std::move(out));
}

Value dict_sort(Interpreter& run, const Value& v, Arguments& a) {
  a.only(3, {"case_sensitive", "by", "reverse"});
  const bool sensitive = given_true(a, 0, "case_sensitive"), backwards = given_true(a, 2, "reverse");
  const Value* by = a.find(1, "by");
  const std::string order = by != nullptr ? to_text(*by) : "key";
  MPX_CHECK(order == "key" || order == "value", "text", "dictsort by '", order, "'; there are key and value");
  const size_t side = order == "value" ? 1 : 0;
  MPX_CHECK(!v.is_undefined(), "text", v.undefined().what);
  Arguments none;
  List pairs = items(run, v, none).items();
  pay_sort(run, v);
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Value& x, const Value& y) {
    const Value left = folded(x.items()[side], sensitive), right = folded(y.items()[side], sensitive);
    return backwards ? less(right, left) : less(left, right);
  });
  return run.list(std::move(pairs));
}

Value unique(Interpreter& run, const Value& v, Arguments& a) {
  a.only(2, {"case_sensitive", "attribute"});
  const bool sensitive = given_true(a, 0, "case_sensitive");
  const Value* path = a.find(1, "attribute");
  List out, seen;
  for (const Value& value : elements(run, v)) {
    const Value key = folded(path != nullptr ? path_of(run, value, *path) : value, sensitive);
    MPX_CHECK(!key.is_dict() && !key.is(Kind::list), "text", "unique of a ", type_name(key), "; it cannot be hashed");
    run.spend((seen.size() + 1) * static_cast<size_t>(key.weight()));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(other, key); })) continue;
    seen.push_back(key);
    out.push_back(value);
  }
  return run.list(std::move(out));
}

Value extreme(Interpreter& run, const Value& v, const Arguments& a, bool largest) {
  const bool sensitive = given_true(a, 0, "case_sensitive");
  const Value* path = a.find(1, "attribute");
  const List all = elements(run, v);
  run.spend(static_cast<size_t>(4 * v.weight()));
  if (all.empty()) return Undefined{"there is no largest or smallest item, the sequence is empty"};
  const auto key = [&](const Value& value) {
    return folded(path != nullptr ? path_of(run, value, *path) : value, sensitive);
  };
  const Value* best = &all[0];
  for (const Value& value : all) {
    if (largest ? less(key(*best), key(value)) : less(key(value), key(*best))) best = &value;
  }
  return *best;
}

Value max(Interpreter& run, const Value& v, Arguments& a) { return extreme(run, v, a, true); }
Value min(Interpreter& run, const Value& v, Arguments& a) { return extreme(run, v, a, false); }

Value sum(Interpreter& run, const Value& v, Arguments& a) {
  a.only(2, {"attribute", "start"});
  const Value *path = a.find(0, "attribute"), *start = a.find(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  for (const Value& value : elements(run, v))
    total =
        arithmetic(run, "+", total, path != nullptr && !path->is(Kind::none) ? path_of(run, value, *path) : value);
  return total;
}

constexpr struct {
  std::string_view name;
  Filter filter;
} kListFilters[] = {{"dictsort", dict_sort},
                    {"first", first},
                    {"items", items},
                    {"join", join},
                    {"last", last},
                    {"list", list},
                    {"map", map},
                    {"max", max},
                    {"min", min},
                    {"reject", choose<false, false>},
                    {"rejectattr", choose<true, false>},
                    {"reverse", reverse},
                    {"select", choose<false, true>},
                    {"selectattr", choose<true, true>},
                    {"sort", sort},
                    {"sum", sum},
                    {"unique", unique}};

}  // namespace

Filter find_list_filter(std::string_view name) {
  for (const auto& row : kListFilters) {
    if (row.name == name) return row.filter;
  }
  return nullptr;
}

}  // namespace metroplex::text::jinja
