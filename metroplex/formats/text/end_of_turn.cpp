#include "text/end_of_turn.h"

#include <algorithm>

#include "base/error.h"
#include "files/file_system.h"
#include "files/json_text.h"

namespace metroplex::text {

std::optional<int32_t> end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::string answer = "An answer.";
  const Chat chat = chat_from_json(nlohmann::ordered_json::array(
      {{{"role", "user"}, {"content", "A question."}}, {{"role", "assistant"}, {"content", answer}}}));
  ChatTokens after;
  try {
    const std::string whole = chat_template.text(chat, false);
    const size_t at = whole.rfind(answer);
    if (at == std::string::npos) return std::nullopt;
    after = chat_tokens(tokenizer, {whole, {{at + answer.size(), whole.size()}}});
  } catch (const base::Error&) { return std::nullopt; }
  const auto first = std::find(after.learned.begin(), after.learned.end(), 1);
  if (first == after.learned.end()) return std::nullopt;
  const int32_t id = after.ids[static_cast<size_t>(first - after.learned.begin())];
  return tokenizer.is_special(id) ? std::optional(id) : std::nullopt;
}

std::vector<int64_t> configured_end_tokens(const std::string& directory) {
  files::PosixFileSystem disk;
  std::vector<int64_t> tokens;
  const std::string file = files::join_path(directory, "generation_config.json");
  if (directory.empty() || !disk.exists(file)) return tokens;
  const nlohmann::json json = files::parse_json_strictly(disk.read(file), file);
  const auto found = json.is_object() ? json.find("eos_token_id") : json.end();
  if (!json.is_object() || found == json.end()) return tokens;
  for (const auto& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    if (id.is_number_integer()) tokens.push_back(id.get<int64_t>());
  }
  return tokens;
}

}  // namespace metroplex::text
