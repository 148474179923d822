// Filters that take or return lists.
#include "text/jinja/interpreter.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace metroplex::text::jinja {
namespace {

bool has_true_argument(const Arguments& arguments, size_t place, std::string_view name) {
  const Value* value = arguments.find(place, name);
  return value != nullptr && value->truth();
}

// Looks up an attribute path "a.b.0", as the filters with an attribute do.
Value resolve_path(Interpreter& run, const Value& value, const Value& path, const Value* fallback = nullptr) {
  const auto member = [&](const Value& of, const Value& key) {
    const Value found = item(run, of, key);
    return found.is_undefined() && fallback != nullptr ? *fallback : found;
  };
  if (path.is_integer()) return member(value, path);
  const std::string names = run.convert_text(path);
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

Arguments drop_arguments(const Arguments& arguments, size_t count, const std::string& callee) {
  Arguments rest;
  rest.callee = callee;
  rest.named = arguments.named;
  for (size_t i = count; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  return rest;
}

Value map(Interpreter& run, const Value& v, Arguments& arguments) {
  List out;
  if (!v.truth()) return Value::generator({});  // also None, false and 0
  if (const Value* path = arguments.find(SIZE_MAX, "attribute"); path != nullptr && arguments.positional.empty()) {
    arguments.only(0, {"attribute", "default"});
    const Value* fallback = arguments.find(SIZE_MAX, "default");
    if (fallback != nullptr && fallback->is(Kind::none)) fallback = nullptr;
    for (const Value& value : elements(run, v)) {
      out.push_back(resolve_path(run, value, *path, fallback));
      run.charge(1);
    }
    return run.generator(std::move(out));
  }
  const std::string name = run.convert_text(arguments.need(0, "name"));
  for (const Value& value : elements(run, v)) {
    Arguments rest = drop_arguments(arguments, 1, name);
    out.push_back(run.call_filter(name, value, rest));
    run.charge(1);
  }
  return run.generator(std::move(out));
}

// select, reject, selectattr, rejectattr.
Value select_items(Interpreter& run, const Value& v, const Arguments& arguments, bool by_attribute, bool wanted) {
  if (!v.truth()) return Value::generator({});  // also None, false and 0
  const size_t skip = by_attribute ? 1 : 0;
  const bool has_test = arguments.positional.size() > skip;
  const std::string name = has_test ? run.convert_text(arguments.positional[skip]) : "";
  const Arguments rest = drop_arguments(arguments, skip + 1, name);
  List out;
  for (const Value& value : elements(run, v)) {
    const Value seen = by_attribute ? resolve_path(run, value, arguments.need(0, "attribute")) : value;
    const bool holds = has_test ? run.call_test(name, seen, rest) : seen.truth();
    if (holds == wanted) out.push_back(value);
    run.charge(1);
  }
  return run.generator(std::move(out));
}

template <bool ByAttribute, bool Wanted>
Value choose(Interpreter& run, const Value& value, Arguments& arguments) {
  return select_items(run, value, arguments, ByAttribute, Wanted);
}

Value join(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(2, {"d", "attribute"});
  const Value *between = arguments.find(0, "d"), *path = arguments.find(1, "attribute");
  const std::string separator = between != nullptr ? run.convert_text(*between) : "";
  std::string out;
  bool first = true;
  for (const Value& value : elements(run, v)) {
    run.charge_text(separator.size() + 4);
    if (!first) out += separator;
    first = false;
    out += run.convert_text(path != nullptr && !path->is(Kind::none) ? resolve_path(run, value, *path) : value);
  }
  return out;
}

Value first_or_last(Interpreter& run, const Value& value, const Arguments& arguments, bool last) {
  arguments.only(0);
  MPX_CHECK(!last || !value.is_generator(), "text",
            "a generator has no last item; convert it to a list with the filter 'list'");
  if (value.is_generator() && value.iterator().taken < value.iterator().items->size())
    return (*value.iterator().items)[value.iterator().taken++];
  const List items = elements(run, value);
  if (items.empty())
    return Undefined{last ? "there is no last item, the sequence is empty"
                          : "there is no first item, the sequence is empty"};
  return last ? items.back() : items.front();
}

Value first(Interpreter& run, const Value& value, Arguments& arguments) {
  return first_or_last(run, value, arguments, false);
}
Value last(Interpreter& run, const Value& value, Arguments& arguments) {
  return first_or_last(run, value, arguments, true);
}

Value list(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  return run.list(elements(run, value));
}

List dict_items(Interpreter& run, const Value& v) {
  MPX_CHECK(v.is_dict(), "text", "items: a ", type_name(v), " is not a dict");
  run.charge_items(3 * v.dict().items().size());
  List out;
  for (const auto& [key, value] : v.dict().items()) out.push_back(Value::tuple({key, value}));
  return out;
}

Value items(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  return Value::generator(value.is_undefined() ? List{} : dict_items(run, value));
}

Value reverse(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(0);
  List out = elements(run, value);
  std::reverse(out.begin(), out.end());
  if (value.is_generator()) return run.list(std::move(out));
  if (!value.is_string()) return run.generator(std::move(out));
  std::string text;
  for (const Value& character : out) text += character.string();
  run.charge(text.size() / 4);
  return text_like(value, std::move(text));
}

void charge_sort(Interpreter& run, const Value& value) {
  const auto weight = static_cast<size_t>(value.weight());
  run.charge(4 * weight * static_cast<size_t>(std::bit_width(weight)));
}

Value fold_case(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.string())) : value;
}

// Returns the attributes "a,b" of a sort; None means the value itself.
List sort_paths(Interpreter& run, const Value* attribute) {
  if (attribute == nullptr || !attribute->is_string()) return {attribute != nullptr ? *attribute : Value(None{})};
  List paths;
  const std::string& names = attribute->string();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    run.charge(1);
    paths.emplace_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

// Compares as Python compares lists; undefined values are equal.
bool keys_less(const List& a, const List& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = (a[i].is_undefined() && b[i].is_undefined()) || equal(a[i], b[i]);
    if (!same) return less(a[i], b[i]);
  }
  return false;
}

Value sort(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(3, {"reverse", "case_sensitive", "attribute"});
  const bool backwards = has_true_argument(arguments, 0, "reverse"),
             sensitive = has_true_argument(arguments, 1, "case_sensitive");
  const Value* path = arguments.find(2, "attribute");
  charge_sort(run, v);
  std::vector<std::pair<List, Value>> keyed;
  for (const Value& value : elements(run, v)) {
    List keys;
    for (const Value& one : sort_paths(run, path))
      keys.push_back(fold_case(one.is(Kind::none) ? value : resolve_path(run, value, one), sensitive));
    keyed.emplace_back(std::move(keys), value);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return backwards ? keys_less(y.first, x.first) : keys_less(x.first, y.first);
  });
  List out;
  for (auto& pair : keyed) out.push_back(std::move(pair.second));
  return run.list(std::move(out));
}

Value dict_sort(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(3, {"case_sensitive", "by", "reverse"});
  const bool sensitive = has_true_argument(arguments, 0, "case_sensitive"),
             backwards = has_true_argument(arguments, 2, "reverse");
  const Value* by = arguments.find(1, "by");
  const std::string order = by != nullptr ? to_text(*by) : "key";
  MPX_CHECK(order == "key" || order == "value", "text", "dictsort: unknown order '", order, "'; use key or value");
  const size_t side = order == "value" ? 1 : 0;
  MPX_CHECK(!value.is_undefined(), "text", value.undefined().what);
  List pairs = dict_items(run, value);
  charge_sort(run, value);
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Value& x, const Value& y) {
    const Value left = fold_case(x.items()[side], sensitive), right = fold_case(y.items()[side], sensitive);
    return backwards ? less(right, left) : less(left, right);
  });
  return run.list(std::move(pairs));
}

Value unique(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(2, {"case_sensitive", "attribute"});
  const bool sensitive = has_true_argument(arguments, 0, "case_sensitive");
  const Value* path = arguments.find(1, "attribute");
  List out, seen;
  for (const Value& value : elements(run, v)) {
    const Value key = fold_case(path != nullptr ? resolve_path(run, value, *path) : value, sensitive);
    MPX_CHECK(!key.is_dict() && !key.is(Kind::list), "text", "unique: a ", type_name(key), " cannot be hashed");
    run.charge((seen.size() + 1) * static_cast<size_t>(key.weight()));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(other, key); })) continue;
    seen.push_back(key);
    out.push_back(value);
  }
  return run.generator(std::move(out));
}

// Returns lists of `linecount` items each; `fill_with` pads the last one.
Value batch(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(2, {"linecount", "fill_with"});
  const Value &count = arguments.need(0, "linecount"), *fill = arguments.find(1, "fill_with");
  MPX_CHECK(count.is_integer(), "text", "batch: the size must be a whole number, not a ", type_name(count));
  const int64_t size = count.integer();
  List out, row;
  for (const Value& value : elements(run, v)) {
    if (static_cast<int64_t>(row.size()) == size) {
      out.push_back(run.list(std::move(row)));
      row.clear();
    }
    row.push_back(value);
  }
  if (row.empty()) return run.generator(std::move(out));
  if (fill != nullptr && !fill->is(Kind::none) && static_cast<int64_t>(row.size()) < size) {
    run.charge_items(static_cast<size_t>(size) - row.size());
    row.resize(static_cast<size_t>(size), *fill);
  }
  out.push_back(run.list(std::move(row)));
  return run.generator(std::move(out));
}

// Returns `slices` lists. If the number does not divide the items, the first lists have one more item.
Value slices(Interpreter& run, const Value& value, Arguments& arguments) {
  arguments.only(2, {"slices", "fill_with"});
  const Value &count = arguments.need(0, "slices"), *fill = arguments.find(1, "fill_with");
  MPX_CHECK(count.is_integer() && count.integer() != 0, "text", "slice: the number of lists is ", to_text(count),
            "; it must be a whole number other than 0");
  const List all = elements(run, value);
  if (count.integer() < 0) return Value::generator({});
  const auto number = static_cast<size_t>(count.integer());
  const size_t each = all.size() / number, longer = all.size() % number;
  run.charge_items(number);
  List out;
  for (size_t i = 0, begin = 0; i < number; ++i) {
    const size_t end = begin + each + (i < longer ? 1 : 0);
    List row(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
    if (fill != nullptr && !fill->is(Kind::none) && i >= longer) row.push_back(*fill);
    out.push_back(run.list(std::move(row)));
    begin = end;
  }
  return run.generator(std::move(out));
}

Value group_by(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(3, {"attribute", "default", "case_sensitive"});
  const Value &path = arguments.need(0, "attribute"), *fallback = arguments.find(1, "default");
  if (fallback != nullptr && fallback->is(Kind::none)) fallback = nullptr;
  const bool sensitive = has_true_argument(arguments, 2, "case_sensitive");
  charge_sort(run, v);
  std::vector<std::pair<Value, Value>> keyed;  // key and item
  for (const Value& value : elements(run, v)) keyed.emplace_back(resolve_path(run, value, path, fallback), value);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return less(fold_case(x.first, sensitive), fold_case(y.first, sensitive));
  });
  List out;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    List items;
    const Value key = fold_case(keyed[begin].first, sensitive);
    for (; end < keyed.size() && equal(fold_case(keyed[end].first, sensitive), key); ++end)
      items.push_back(keyed[end].second);
    out.push_back(Value::group(keyed[begin].first, run.list(std::move(items))));
  }
  return run.list(std::move(out));
}

Value extreme(Interpreter& run, const Value& v, const Arguments& arguments, bool largest) {
  const bool sensitive = has_true_argument(arguments, 0, "case_sensitive");
  const Value* path = arguments.find(1, "attribute");
  const List all = elements(run, v);
  run.charge(static_cast<size_t>(4 * v.weight()));
  if (all.empty()) return Undefined{"there is no largest or smallest item, the sequence is empty"};
  const auto key = [&](const Value& value) {
    return fold_case(path != nullptr ? resolve_path(run, value, *path) : value, sensitive);
  };
  const Value* best = &all[0];
  for (const Value& value : all) {
    if (largest ? less(key(*best), key(value)) : less(key(value), key(*best))) best = &value;
  }
  return *best;
}

Value max(Interpreter& run, const Value& value, Arguments& arguments) { return extreme(run, value, arguments, true); }
Value min(Interpreter& run, const Value& value, Arguments& arguments) {
  return extreme(run, value, arguments, false);
}

Value sum(Interpreter& run, const Value& v, Arguments& arguments) {
  arguments.only(2, {"attribute", "start"});
  const Value *path = arguments.find(0, "attribute"), *start = arguments.find(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  for (const Value& value : elements(run, v))
    total = arithmetic(run, "+", total,
                       path != nullptr && !path->is(Kind::none) ? resolve_path(run, value, *path) : value);
  return total;
}

constexpr struct {
  std::string_view name;
  Filter filter;
} kListFilters[] = {{"batch", batch},
                    {"dictsort", dict_sort},
                    {"first", first},
                    {"groupby", group_by},
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
                    {"slice", slices},
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
