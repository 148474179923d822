#include "config/choice.h"

#include "base/error.h"

namespace metroplex::config {

void refuse_word(const std::string& text, const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + (word.empty() ? "(empty)" : word);
  const std::string nearest = base::nearest_name(text, words);
  base::throw_error("config", base::concat("'", text, "' is none of ", list,
                                           nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
}

}  // namespace metroplex::config
