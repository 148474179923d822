// Output for the user. Modules below run/ do not log: they return values or throw. apps/ creates the sink.
#pragma once

#include <string>

namespace metroplex::base {

class Log {
 public:
  virtual ~Log() = default;
  virtual void info(const std::string& line) = 0;
  virtual void warn(const std::string& line) = 0;
};

// Discards everything: for tests and for ranks that do not log.
class NullLog final : public Log {
 public:
  void info(const std::string&) override {}
  void warn(const std::string&) override {}
};

}  // namespace metroplex::base
