// Where words to the user go. Rooms below train/ do not log: they return facts or throw. apps/ makes the sink.
#pragma once

#include <string>

namespace metroplex::base {

class Log {
 public:
  virtual ~Log() = default;
  virtual void info(const std::string& line) = 0;
  virtual void warn(const std::string& line) = 0;
};

// Says nothing: for tests and for ranks that have nothing to add.
class NullLog final : public Log {
 public:
  void info(const std::string&) override {}
  void warn(const std::string&) override {}
};

}  // namespace metroplex::base
