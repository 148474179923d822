// libFuzzer entry: any bytes as a chat template, rendered with a chat; with few steps, so that nothing is slow.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "text/jinja/template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace metroplex::text;
  static const jinja::Value kVariables = jinja::from_json(nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "a b\n"}, {"role": "assistant", "content": "\u00e9 <think>x</think>", "n": [1, 2.5, null]}],
          "tools": [{"function": {"name": "f", "parameters": {"type": "object"}}}], "bos_token": "<s>", "add_generation_prompt": true})"));
  try {
    const jinja::Template parsed(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    jinja::Limits limits;
    limits.steps = 200'000;
    const jinja::Rendered rendered = parsed.render(kVariables.dict(), 0, limits);
    if (valid_utf8_prefix(rendered.text) != rendered.text.size()) std::abort();
    for (const auto& [begin, end] : rendered.generated) {
      if (begin > end || end > rendered.text.size()) std::abort();
    }
  } catch (const metroplex::base::Error&) {}
  return 0;
}
