// The interpreter of pickle opcodes. Names and numbers of the opcodes are those of Python's pickletools.
#include "pickle/value.h"

#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "base/error.h"

static_assert(std::endian::native == std::endian::little);

namespace metroplex::pickle {

constexpr size_t kMaxName = 1000;

class Interpreter {
 public:
  Interpreter(std::string_view text, size_t offset, Document& out) : text_(text), offset_(offset), out_(out) {}

  void run() {
    while (true) {
      begin_ = at_;
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      if (!read_scalar(code) && !read_text(code) && !read_container(code) && !read_object(code) && !read_memo(code))
        fail(base::concat("opcode ", static_cast<int>(code),
                          " is not supported; expected a pickle of protocol 2 to 5"));
    }
    out_.root_ = pop();
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    base::throw_error("pickle", base::concat("'", out_.path_, "', byte ", offset_ + begin_, ": ", problem,
                                             "; copy the file again, or save it with torch.save"));
  }
  std::string_view take(uint64_t count) {
    if (count > text_.size() - at_)
      fail(base::concat("the value has ", count, " bytes, but only ", text_.size() - at_, " follow"));
    const std::string_view taken = text_.substr(at_, count);
    at_ += count;
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view line() {
    const size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) fail("a name has no end of line");
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }

  Value& push(Kind kind) {
    out_.values_.push_back({});
    Value& value = out_.values_.back();
    value.kind = kind;
    value.at = offset_ + begin_;
    stack_.push_back(&value);
    return value;
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Value* pop() {
    if (stack_.size() <= floor()) fail("the stack has no value for this opcode");
    Value* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Value& top() {
    if (stack_.size() <= floor()) fail("the stack has no value for this opcode");
    return *stack_.back();
  }
  // Removes the values after the last mark.
  std::vector<const Value*> pop_marked() {
    if (marks_.empty()) fail("there is no mark for this opcode");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const Value*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void remove_top() {
    if (stack_.size() > floor()) stack_.pop_back();
    else pop_marked();  // removes the mark
  }
  std::vector<const Value*> pop_items(size_t count) {
    std::vector<const Value*> items(count);
    for (size_t i = count; i > 0; --i) items[i - 1] = pop();
    return items;
  }

  void push_integer(int64_t value) { push(Kind::integer).integer = value; }
  void push_long(uint64_t bytes) {
    const std::string_view digits = take(bytes);
    if (bytes > 8) {
      push(Kind::large_integer);
      return;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(digits[i])) << 8 * i;
    const bool negative = bytes > 0 && (digits.back() & 0x80) != 0;
    if (negative && bytes < 8) value |= ~uint64_t{0} << 8 * bytes;
    push_integer(static_cast<int64_t>(value));
  }
  bool read_scalar(unsigned char code) {
    switch (code) {
      case 0x80:
        check_protocol(number<uint8_t>());
        break;
      case 0x95:
        check_frame(number<uint64_t>());
        break;
      case 'N':
        push(Kind::none);
        break;
      case 0x88:
        push(Kind::boolean).integer = 1;
        break;
      case 0x89:
        push(Kind::boolean).integer = 0;
        break;
      case 'J':
        push_integer(number<int32_t>());
        break;
      case 'K':
        push_integer(number<uint8_t>());
        break;
      case 'M':
        push_integer(number<uint16_t>());
        break;
      case 0x8a:
        push_long(number<uint8_t>());
        break;
      case 0x8b:
        push_long(number<uint32_t>());
        break;
      case 'G':
        push(Kind::real).real = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
        break;
      default:
        return false;
    }
    return true;
  }
  void check_protocol(int protocol) {
    if (protocol < 2 || protocol > 5) fail(base::concat("protocol ", protocol, " is not supported; expected 2 to 5"));
  }
  void check_frame(uint64_t bytes) {
    if (bytes > text_.size() - at_) fail(base::concat("a frame of ", bytes, " bytes exceeds the file"));
  }

  bool read_text(unsigned char code) {
    const auto push_text = [&](Kind kind, uint64_t bytes) {
      const std::string_view text = take(bytes);
      push(kind).text = text;
    };
    switch (code) {
      case 0x8c:
        push_text(Kind::text, number<uint8_t>());
        break;
      case 'X':
        push_text(Kind::text, number<uint32_t>());
        break;
      case 0x8d:
        push_text(Kind::text, number<uint64_t>());
        break;
      case 'U':
        push_text(Kind::text, number<uint8_t>());
        break;  // str of Python 2
      case 'T':
        push_text(Kind::text, number<uint32_t>());
        break;  // str of Python 2
      case 'C':
        push_text(Kind::bytes, number<uint8_t>());
        break;
      case 'B':
        push_text(Kind::bytes, number<uint32_t>());
        break;
      case 0x8e:
        push_text(Kind::bytes, number<uint64_t>());
        break;
      case 0x96:
        push_text(Kind::bytes, number<uint64_t>());
        break;
      default:
        return false;
    }
    return true;
  }

  void push_container(Kind kind, std::vector<const Value*> items) {
    if (kind == Kind::dict && items.size() % 2 != 0) fail("a dict has a key without a value");
    push(kind).items = std::move(items);
  }
  // Adds to a list, set or dict, or to an object of a class derived from one.
  void add_items(Kind kind, std::vector<const Value*> items) {
    Value& value = top();
    if (value.kind != kind && value.kind != Kind::object)
      fail(base::concat("items are added to ", to_string(value.kind), ", not to ", to_string(kind)));
    if (kind == Kind::dict && items.size() % 2 != 0) fail("a dict has a key without a value");
    value.items.insert(value.items.end(), items.begin(), items.end());
  }
  bool read_container(unsigned char code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        break;
      case '0':
        remove_top();
        break;
      case '1':
        pop_marked();
        break;
      case '2':
        stack_.push_back(&top());
        break;
      case ')':
        push_container(Kind::tuple, {});
        break;
      case 't':
        push_container(Kind::tuple, pop_marked());
        break;
      case 0x85:
        push_container(Kind::tuple, pop_items(1));
        break;
      case 0x86:
        push_container(Kind::tuple, pop_items(2));
        break;
      case 0x87:
        push_container(Kind::tuple, pop_items(3));
        break;
      case ']':
        push_container(Kind::list, {});
        break;
      case 'l':
        push_container(Kind::list, pop_marked());
        break;
      case '}':
        push_container(Kind::dict, {});
        break;
      case 'd':
        push_container(Kind::dict, pop_marked());
        break;
      case 0x8f:
        push_container(Kind::set, {});
        break;
      case 0x91:
        push_container(Kind::set, pop_marked());
        break;
      case 'a':
        add_items(Kind::list, pop_items(1));
        break;
      case 'e':
        add_items(Kind::list, pop_marked());
        break;
      case 's':
        add_items(Kind::dict, pop_items(2));
        break;
      case 'u':
        add_items(Kind::dict, pop_marked());
        break;
      case 0x90:
        add_items(Kind::set, pop_marked());
        break;
      default:
        return false;
    }
    return true;
  }

  void push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kMaxName) fail("a name is too long");  // names are copied
    out_.names_.push_back(base::concat(module, ".", name));
    push(Kind::global).text = out_.names_.back();
  }
  void push_named() {
    const auto words = pop_items(2);
    for (const Value* word : words) {
      if (word->kind != Kind::text) fail(base::concat("a name is ", to_string(word->kind), ", not a str"));
    }
    push_global(words[0]->text, words[1]->text);
  }
  void push_object(size_t operands) {
    const auto call = pop_items(operands);
    if (call[0]->kind != Kind::global && call[0]->kind != Kind::object)
      fail(base::concat("a call of ", to_string(call[0]->kind), ", which is not a class or a function"));
    if (call[1]->kind != Kind::tuple) fail(base::concat("the arguments of a call are ", to_string(call[1]->kind)));
    Value& object = push(Kind::object);
    object.callee = call[0];
    object.arguments = call[1];
  }
  void set_state() {
    const Value* const state = pop();
    Value& object = top();
    if (object.kind != Kind::object) fail(base::concat("a state is set on ", to_string(object.kind)));
    object.state = state;
  }
  bool read_object(unsigned char code) {
    switch (code) {
      case 'c': {
        const std::string_view module = line(), name = line();
        push_global(module, name);
        break;
      }
      case 0x93:
        push_named();
        break;
      case 'R':
        push_object(2);
        break;
      case 0x81:
        push_object(2);
        break;
      case 0x92:
        push_object(3);
        break;  // with keyword arguments, which are not kept
      case 'b':
        set_state();
        break;
      case 'Q': {
        const Value* const id = pop();
        push(Kind::persistent).arguments = id;
        break;
      }
      default:
        return false;
    }
    return true;
  }

  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail(base::concat("value ", index, " is used before it is stored"));
    stack_.push_back(found->second);
  }
  bool read_memo(unsigned char code) {
    switch (code) {
      case 'q':
        memo_[number<uint8_t>()] = &top();
        break;
      case 'r':
        memo_[number<uint32_t>()] = &top();
        break;
      case 0x94:
        memo_[memo_.size()] = &top();
        break;
      case 'h':
        recall(number<uint8_t>());
        break;
      case 'j':
        recall(number<uint32_t>());
        break;
      default:
        return false;
    }
    return true;
  }

  std::string_view text_;
  size_t offset_, at_ = 0, begin_ = 0;
  Document& out_;
  std::vector<Value*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value*> memo_;
};

Document::Document(std::string_view text, std::string path, size_t offset) : path_(std::move(path)) {
  Interpreter(text, offset, *this).run();
}

}  // namespace metroplex::pickle
