// A chat template: the part of Jinja that the templates of model families use, with the settings of transformers
// (trim_blocks, lstrip_blocks, its functions, filter and {% generation %} blocks). docs/finetuning.md lists what it
// knows. Undefined is as Jinja's: empty as text, false, an error when something of it is asked for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"

namespace metroplex::text::jinja {

// Throws base::Error for numbers of more than 64 bits, and for what is nested too deeply.
Value from_json(const nlohmann::ordered_json& json);

class Template {
 public:
  // Throws base::Error "WHERE, line N: ..." naming the construct that is wrong or not known here.
  Template(std::string_view source, std::string where);
  Template(Template&&) = default;
  Template& operator=(Template&&) = default;

  // Throws base::Error "WHERE, line N: ..."; also where the template itself refuses its input (raise_exception).
  // `now`, in seconds since 1970, is what strftime_now shows, in the zone of this machine. Safe from any thread.
  Rendered render(const Dict& variables, int64_t now, const Limits& limits = {}) const;

 private:
  std::string where_;
  Statements statements_;
};

}  // namespace metroplex::text::jinja
