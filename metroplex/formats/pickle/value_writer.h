// Writes a pickle of protocol 2, which Python and Document (value.h) read. Values are written in order; a container's
// values are written between its begin and end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::pickle {

class ValueWriter {
 public:
  void none() { code('N'); }
  void boolean(bool value) { code(value ? '\x88' : '\x89'); }
  void integer(int64_t value);
  void real(double value);
  void text(std::string_view value);
  // `name`: with the module, such as "torch.Size".
  void global(std::string_view name);

  // In a dict, keys and values alternate.
  void begin_dict() { begin("}("); }
  void end_dict() { code('u'); }
  void begin_list() { begin("]("); }
  void end_list() { code('e'); }
  void begin_tuple() { begin("("); }
  void end_tuple() { code('t'); }
  void integers(const std::vector<int64_t>& values);  // a tuple

  // Each replaces the values written last. A function and its tuple of arguments: the result of the call.
  void call() { code('R'); }
  // A class and its tuple of arguments: an object without a call of __init__.
  void create() { code('\x81'); }
  // An object and its state: the object with this state.
  void set_state() { code('b'); }
  // An id: the reference to a storage of torch.save.
  void persistent() { code('Q'); }

  // Ends the pickle and returns its bytes.
  std::string take();

 private:
  void code(char opcode) { bytes_ += opcode; }
  void begin(const char* opcodes) { bytes_ += opcodes; }

  std::string bytes_ = "\x80\x02";
};

}  // namespace metroplex::pickle
