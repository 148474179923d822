#include "upper/prompt_lines.h"

#include "base/error.h"
#include "files/file_system.h"
#include "files/json_text.h"
#include "files/text_form.h"
#include "text/utf8.h"

namespace metroplex::apps {
namespace {

using Json = nlohmann::ordered_json;

PromptLine parse_prompt(const std::string& line) {
  PromptLine out;
  const size_t first = line.find_first_not_of(" \t");
  const bool is_json = line[first] == '{' || line[first] == '"';
  const size_t valid = text::valid_utf8_prefix(line);
  MPX_CHECK(is_json || valid == line.size(), "data", "is not UTF-8 at byte ", valid + 1);
  const Json json = is_json ? files::parse_ordered_json(line, /*exact=*/true) : Json(line);
  if (json.is_string()) {
    out.prompt = json.get<std::string>();
    out.given = {{"prompt", json}};
  } else if (json.contains("messages")) {
    out.given = json;
    out.chat = text::chat_from_json(json);
  } else {
    MPX_CHECK(json.contains("prompt") && json["prompt"].is_string(), "data",
              "must have \"prompt\" with a string, or \"messages\"");
    out.given = json;
    out.prompt = json["prompt"].get<std::string>();
  }
  return out;
}

}  // namespace

std::vector<PromptLine> read_prompt_lines(const std::string& file) {
  files::PosixFileSystem disk;
  const std::string bytes = disk.read(file), form = files::no_text_form(bytes);
  MPX_CHECK(form.empty(), "data", "--prompts ", file, " ", form);
  const std::string_view text = files::without_byte_order_mark(bytes);
  std::vector<PromptLine> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    try {
      out.push_back(parse_prompt(line));
      out.back().number = number;
    } catch (const base::Error& error) {
      const std::string lines = files::no_json_lines_form(text);
      MPX_CHECK(lines.empty(), "data", "--prompts ", file, " ", lines);
      throw base::Error("data", base::concat("--prompts ", file, " line ", number, ": ", base::message_of(error)));
    }
  }
  MPX_CHECK(!out.empty(), "data", "--prompts ", file, " contains no prompt");
  return out;
}

std::string answer_line(const PromptLine& line, const std::string& text) {
  Json out = line.given;
  if (line.chat) out["messages"].push_back({{"role", "assistant"}, {"content", text}});
  else out["text"] = text;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace metroplex::apps
