#include "upper/chat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cerrno>
#include <iostream>

#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

#include "apps/console.h"
#include "base/error.h"
#include "comm/collectives.h"
#include "comm/launch.h"
#include "files/file_system.h"
#include "text/end_of_turn.h"
#include "text/utf8.h"
#include "upper/stop_signal.h"

namespace metroplex::apps {
namespace {

constexpr int kPollMs = 200;
constexpr const char* kDialogHelp =
    "/reset clears the chat, /system TEXT sets the system message and clears the chat, /exit or ctrl-D exits, ctrl-C "
    "stops an answer\n";

// Prints an answer as it grows, up to the last complete UTF-8 character.
class GrowingText {
 public:
  explicit GrowingText(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(int64_t token) {
    ids_.push_back(static_cast<int32_t>(token));
    const std::string all = tokenizer_.decode_skip_special(ids_);
    size_t end = text::valid_utf8_prefix(all);
    // An incomplete character decodes to U+FFFD.
    while (end >= 3 && all.compare(end - 3, 3, "\xef\xbf\xbd") == 0) end -= 3;
    if (end > shown_) write_text(all.substr(shown_, end - shown_));
    std::cout.flush();
    shown_ = std::max(shown_, end);
  }
  std::string finish() {
    std::string all = tokenizer_.decode_skip_special(ids_);
    if (all.size() > shown_) write_text(all.substr(shown_));
    std::cout << std::endl;
    return all;
  }

 private:
  const text::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t shown_ = 0;
};

std::vector<int64_t> shared(const std::vector<int64_t>& mine, const comm::World& world) {
  at::Tensor count = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  comm::broadcast(count, 0, world.groups().world);
  at::Tensor numbers = at::empty({count.item<int64_t>()}, at::kLong);
  if (numbers.numel() == 0) return {};
  if (world.rank() == 0) std::copy(mine.begin(), mine.end(), numbers.mutable_data_ptr<int64_t>());
  comm::broadcast(numbers, 0, world.groups().world);
  const auto* begin = numbers.const_data_ptr<int64_t>();
  return {begin, begin + numbers.numel()};
}

// Rank 0's side of a dialog: reads lines until a message can be answered.
class Dialog {
 public:
  explicit Dialog(const ChatSettings& chatting)
      : chatting_(chatting), chat_(chatting_.begin()), terminal_(::isatty(STDIN_FILENO) == 1) {
    if (terminal_) std::cout << kDialogHelp;
  }

  // Returns the prompt of the next answer; empty at the end of the dialog.
  std::vector<int64_t> next() {
    std::string line;
    while (read(line)) {
      const std::string_view message = line;
      if (message.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      if (message.starts_with('/')) {
        if (!command(line)) return {};
        continue;
      }
      const text::Chat before = chat_;
      try {
        chatting_.add(chat_, "user", line);
        std::vector<int64_t> prompt = chatting_.prompt(chat_);
        if (!prompt.empty() && static_cast<int64_t>(prompt.size()) < chatting_.context) return prompt;
        if (prompt.empty()) std::cout << "(the chat template produces no text for this chat)" << std::endl;
        else
          std::cout << "(the chat has " << prompt.size() << " tokens, but the context of the model is "
                    << chatting_.context << "; /reset clears the chat)" << std::endl;
      } catch (const base::Error& error) { std::cout << "(" << base::message_of(error) << ")" << std::endl; }
      chat_ = before;
    }
    if (terminal_) std::cout << std::endl;
    return {};
  }
  void answered(const std::string& text) { chatting_.add(chat_, "assistant", text); }

 private:
  bool read(std::string& line) {
    if (!std::cout) return false;  // the reader of the answers has closed the pipe
    take_interrupt();              // discards an interrupt after the previous answer
    if (terminal_) std::cout << "> " << std::flush;
    line.clear();
    for (char c = 0;;) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&input, 1, kPollMs);  // another thread may have received the signal
      if (take_interrupt()) return false;
      if (ready <= 0) continue;
      const ssize_t got = ::read(STDIN_FILENO, &c, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return !line.empty() && got == 0;
      if (c == '\n') {
        if (line.ends_with('\r')) line.pop_back();
        return true;
      }
      line += c;
    }
  }

  bool command(const std::string& line) {
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/reset") {
      chat_ = chatting_.begin();
      std::cout << "(a new chat)" << std::endl;
    } else if (line.starts_with("/system ")) {
      chatting_.system = line.substr(8);
      chat_ = chatting_.begin();
      std::cout << "(a new chat with that system message)" << std::endl;
    } else {
      if (line != "/help") std::cout << "(unknown command " << line.substr(0, line.find(' ')) << ")\n";
      std::cout << kDialogHelp << std::flush;
    }
    return true;
  }

  ChatSettings chatting_;
  text::Chat chat_;
  bool terminal_;
};

}  // namespace

text::Chat ChatSettings::begin() const {
  text::Chat chat;
  chat.messages = nlohmann::ordered_json::array();
  if (!system.empty()) add(chat, "system", system);
  return chat;
}

void ChatSettings::add(text::Chat& chat, const std::string& role, const std::string& content) const {
  chat.messages.push_back({{"role", role}, {"content", text::replace_invalid_utf8(content)}});
}

std::vector<int64_t> ChatSettings::prompt(const text::Chat& chat) const {
  const std::vector<int32_t> ids = tokenizer->encode_chat(chat_template.text(chat, true)).ids;
  return {ids.begin(), ids.end()};
}

std::optional<ChatSettings> find_chatting(const config::Data& data, std::shared_ptr<const text::Tokenizer> tokenizer,
                                          const std::string& file, const std::string& directory) {
  files::PosixFileSystem disk;
  const std::string& model = data.tokenizer_model.empty() ? data.vocab_file : data.tokenizer_model;
  const std::string folder = model.empty() || disk.is_directory(model) ? model : files::parent_directory(model);
  std::optional<text::ChatTemplate> found;
  if (!file.empty()) found.emplace(text::read_chat_template(file, folder));
  else if (!folder.empty() && disk.exists(folder)) found = text::find_chat_template(folder);
  if (!found) return std::nullopt;
  ChatSettings chatting{std::move(tokenizer), std::move(*found), "", {}, 0};
  chatting.stop_tokens = text::configured_end_tokens(directory);
  if (const auto end = text::end_of_turn(chatting.chat_template, *chatting.tokenizer))
    chatting.stop_tokens.push_back(*end);
  return chatting;
}

void run_dialog(const step::ProcessContext& process, step::RankModel& model, const ChatSettings& chatting,
                const run::GenerateOptions& options) {
  const comm::World& world = *process.world;
  const bool speaks = world.rank() == 0;
  std::optional<Dialog> dialog;
  if (speaks) dialog.emplace(chatting);
  const auto launch = comm::launch_from_environment();
  take_interrupts(launch ? launch->cause_fd : -1);
  while (true) {
    const std::vector<int64_t> prompt = shared(speaks ? dialog->next() : std::vector<int64_t>{}, world);
    if (prompt.empty()) return;
    run::GenerateOptions here = options;
    here.max_new_tokens = std::min(options.max_new_tokens, chatting.context - static_cast<int64_t>(prompt.size()));
    here.more_stop_tokens.insert(here.more_stop_tokens.end(), chatting.stop_tokens.begin(),
                                 chatting.stop_tokens.end());
    here.stop = [] { return take_interrupt() || !std::cout; };
    GrowingText text(*chatting.tokenizer);
    run::generate(process, model, prompt, here, [&](int64_t token) {
      if (speaks) text.add(token);
    });
    if (speaks) dialog->answered(text.finish());
  }
}

}  // namespace metroplex::apps
