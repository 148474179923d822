// A chat template in the subset of Jinja that model families use. The settings are those of transformers:
// trim_blocks, lstrip_blocks, its functions, its filter and {% generation %} blocks. docs/finetuning.md lists the
// supported features. Undefined values behave as in Jinja: empty as text, false, an error when an attribute is read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"

namespace metroplex::text::jinja {

// Throws base::Error for numbers of more than 64 bits and for too deep nesting.
Value from_json(const nlohmann::ordered_json& json);

class Template {
 public:
  // Throws base::Error "WHERE, line N: ..." with the invalid or unsupported construct.
  Template(std::string_view source, std::string where);
  Template(Template&&) = default;
  Template& operator=(Template&&) = default;

  // Throws base::Error "WHERE, line N: ...", including the template's own raise_exception. `now`, in seconds since
  // 1970, is the time for strftime_now, in the local time zone. Thread-safe.
  Rendered render(const Dict& variables, int64_t now, const Limits& limits = {}) const;

 private:
  std::string where_;
  Statements statements_;
};

}  // namespace metroplex::text::jinja
