// metroplex generate: continues texts with a model, or chats with it. The model and its tokenizer come from the
// checkpoint's config, or from a Hugging Face directory.
#include "upper/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "apps/console.h"
#include "base/error.h"
#include "files/file_system.h"
#include "files/text_form.h"
#include "hf/directory.h"
#include "numbers.h"
#include "program.h"
#include "run_config.h"
#include "run/generate.h"
#include "run/state.h"
#include "upper/chat.h"
#include "upper/launch.h"
#include "upper/prompt_lines.h"
#include "upper/run_tokenizer.h"
#include "upper/saved_run.h"

namespace metroplex::apps {
namespace {

constexpr const char* kGenerateUsage =
    R"(Usage: metroplex generate DIR [options] [--section.key=value ...]

  DIR                   a Hugging Face directory (--model.from DIR), a checkpoint, or a folder of checkpoints
                        (--load DIR: uses the newest, or that of --ckpt-step N); includes tokenizer and chat template
  --prompt TEXT         the text to continue; repeat the option to continue several prompts separately, in order
  --prompt-file FILE    reads a prompt from a file; can also be repeated
  --no-special-tokens   leave out the tokens that the tokenizer adds to a prompt, such as a begin token; chats never get
                        them, because their template writes them
  --prompts FILE        one prompt per line: text, or JSON: "text", {"prompt": "text"} or {"messages": [...]}; prints a
                        line of JSON per prompt: the prompt with "text" added, or with the answer in "messages"
  --batch-size 8        number of lines of --prompts that are continued at once
  --chat                a dialog with the chat template; the default on a terminal if there is a template and no prompt.
                        With --prompt, each prompt is a message, and its answer is printed
  --system TEXT         the system message of chats
  --chat-template FILE  a template other than the model's
  --max-new-tokens 64   length of the continuation; 1024 in a chat
  --temperature 1       0 is greedy
  --top-k 0             keep the k most likely tokens; 0: all
  --top-p 0             keep the most likely tokens up to this probability; 0: all
  --seed 1234           the same seed gives the same text, on any layout

  metroplex generate checkpoints/llama_tiny --prompt "#include <" --temperature 0.8 --top-k 40
  metroplex generate DIR --prompt "..." --nproc 4 --parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2
  metroplex generate DIR --chat --system "You are brief."
)";

std::string read_file(const std::string& file) {
  MPX_CHECK(!std::filesystem::is_directory(file), "data", "--prompt-file ", file,
            " is a folder; name a file in it, and repeat --prompt-file for each additional file");
  std::ifstream stream(file, std::ios::binary);
  MPX_CHECK(stream.good(), "data", "cannot read --prompt-file ", file, "; does it exist, and is it readable?");
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const std::string form = files::no_text_form(bytes);
  MPX_CHECK(form.empty(), "data", "--prompt-file ", file, " ", form);
  return std::string(files::without_byte_order_mark(bytes));
}

// Returns the training config of the checkpoint, on one rank unless the command line sets more.
config::Config generation_config(const RunArguments& parsed, const std::string& load) {
  config::Config config = parsed.config;
  config.checkpoint = {};
  config.checkpoint.load = load;
  config.checkpoint.exit_on_missing_checkpoint = !load.empty();
  config.parallel.sequence_parallel = false;
  config.train.global_batch_size = 0;
  config.precision.fp8_products = config::Fp8Products::widened;  // the library needs multiples of 16 tokens
  config.train.rampup_batch_size.clear();
  config.train.step_batch_size_schedule.clear();
  config.optim.override_opt_param_scheduler = true;
  config.optim.use_checkpoint_opt_param_scheduler = false;
  config.data.data_path.clear();
  config.data.train_data_path.clear();
  config.data.valid_data_path.clear();
  config.data.test_data_path.clear();
  config.data.mock_data = true;
  return config;
}

struct GenerateFlags {
  std::string max_new, temperature = "1", top_k = "0", top_p = "0", seed = "1234";
  std::vector<std::string> prompts, prompt_files;
  std::string prompts_of_lines, batch_size = "8", system, chat_template;
  bool chat = false, no_special_tokens = false;
  std::vector<CommandFlag> own_flags() {
    return {{"--prompt", nullptr, &prompts},
            {"--prompt-file", nullptr, &prompt_files},
            {"--prompts", &prompts_of_lines},
            {"--batch-size", &batch_size},
            {"--chat", nullptr, nullptr, &chat},
            {"--no-special-tokens", nullptr, nullptr, &no_special_tokens},
            {"--system", &system},
            {"--chat-template", &chat_template},
            {"--max-new-tokens", &max_new},
            {"--temperature", &temperature},
            {"--top-k", &top_k},
            {"--top-p", &top_p},
            {"--seed", &seed}};
  }
  // Without these options an unreadable chat template is ignored.
  bool may_chat() const { return chat || !chat_template.empty() || (prompts.empty() && prompt_files.empty()); }
};

struct GenerateCommand {
  RunArguments parsed;
  SavedRun saved;
  config::Config config;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::TokenizerFiles> files;
  std::optional<ChatSettings> chatting;
  bool dialog = false;            // dialog instead of texts
  bool answers = false;           // texts are chat prompts: only the answer is printed
  std::vector<PromptLine> lines;  // of --prompts; empty: none
  std::vector<std::vector<int64_t>> texts;
  text::SpecialTokens special;  // for prompts that are not chats
  int64_t batch_size = 1;
  run::GenerateOptions options;
};

std::vector<int64_t> encoded(const std::string& prompt, const GenerateCommand& command) {
  const text::Tokenizer& tokenizer = *command.tokenizer;
  const std::vector<int32_t> ids = tokenizer.encode(prompt);
  const text::SpecialTokens& special = command.special;
  std::vector<int64_t> tokens(special.before.begin(), special.before.end());
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  tokens.insert(tokens.end(), special.after.begin(), special.after.end());
  if (tokens.empty() && tokenizer.eod()) tokens.push_back(*tokenizer.eod());  // an empty prompt starts a document
  return tokens;
}

template <class Work>
void at_line(const GenerateFlags& flags, const PromptLine& line, Work work) {
  try {
    work();
  } catch (const base::Error& error) {
    throw base::Error("data", base::concat("--prompts ", flags.prompts_of_lines, " line ", line.number, ": ",
                                           base::message_of(error)));
  }
}

// Checks all lengths before the first text is continued. Otherwise a long text would fail only after the preceding
// texts were generated.
void check_lengths(const GenerateFlags& flags, const GenerateCommand& command) {
  const config::Model& model = command.config.model;
  const bool in_a_table = run::has_position_table(model);
  const int64_t context = model.max_position_embeddings, more = in_a_table ? command.options.max_new_tokens : 1;
  for (size_t i = 0; i < command.texts.size(); ++i) {
    const auto tokens = static_cast<int64_t>(command.texts[i].size());
    if (i < command.lines.size()) {
      at_line(flags, command.lines[i], [&] {
        MPX_CHECK(tokens > 0, "data", "the prompt has no tokens; give at least one character");
        MPX_CHECK(tokens + more <= context, "data", "a prompt of ", tokens, " tokens and ", more,
                  " more is longer than the model's context of ", context, "; shorten it",
                  in_a_table ? " or lower --max-new-tokens" : "");
      });
    } else if (!in_a_table && tokens >= context) {
      std::cerr << "warning: a prompt has " << tokens << " tokens, but the context of the model is " << context
                << "\n";
    } else if (!in_a_table && tokens + command.options.max_new_tokens > context && !flags.max_new.empty()) {
      std::cerr << "warning: a prompt of " << tokens << " tokens and --max-new-tokens " << flags.max_new
                << " exceed the model's context of " << context << "\n";
    }
  }
}

void take_prompts(const GenerateFlags& flags, GenerateCommand& command) {
  std::vector<std::string> prompts = flags.prompts;
  for (const std::string& file : flags.prompt_files) prompts.push_back(read_file(file));
  const bool by_line = !flags.prompts_of_lines.empty();
  MPX_CHECK(!by_line || prompts.empty(), "config", "--prompts excludes --prompt and --prompt-file; leave those out");
  MPX_CHECK(!flags.chat || command.chatting, "config", "--chat: the tokenizer has no chat template ",
            "(chat_template.jinja, or chat_template in tokenizer_config.json); give --chat-template FILE");
  if (by_line) command.lines = read_prompt_lines(flags.prompts_of_lines);
  command.dialog = !by_line && prompts.empty() && (flags.chat || (command.chatting && ::isatty(STDIN_FILENO) == 1));
  command.answers = flags.chat && !by_line;
  MPX_CHECK(
      flags.system.empty() || command.dialog || command.answers, "config", "--system requires --chat or a dialog; ",
      by_line ? "in a chat of --prompts, use a message of the role \"system\"" : "give --chat, or leave it out");
  for (const PromptLine& line : command.lines) {
    MPX_CHECK(!line.chat || command.chatting, "config", "--prompts ", flags.prompts_of_lines,
              " has chats, but there is no chat template; give --chat-template FILE");
    at_line(flags, line, [&] {
      if (line.chat) command.texts.push_back(command.chatting->prompt(*line.chat));
      else command.texts.push_back(encoded(line.prompt, command));
    });
  }
  if (by_line || command.dialog) return;
  if (prompts.empty()) prompts.emplace_back();
  for (const std::string& prompt : prompts) {
    if (!flags.chat) {
      command.texts.push_back(encoded(prompt, command));
      continue;
    }
    text::Chat chat = command.chatting->begin();
    command.chatting->add(chat, "user", prompt);
    command.texts.push_back(command.chatting->prompt(chat));
  }
}

void take_options(const GenerateFlags& flags, GenerateCommand& command) {
  run::GenerateOptions& options = command.options;
  options.max_new_tokens = flags.max_new.empty() ? 64 : whole_number("--max-new-tokens", flags.max_new);
  if (flags.max_new.empty() && (command.dialog || command.answers)) {
    size_t longest = 0;
    for (const auto& text : command.texts) longest = std::max(longest, text.size());
    const int64_t remaining = command.chatting->context - static_cast<int64_t>(longest);
    options.max_new_tokens = std::clamp<int64_t>(remaining, 1, 1024);
  }
  options.temperature = real_number("--temperature", flags.temperature);
  options.top_k = whole_number("--top-k", flags.top_k);
  options.top_p = real_number("--top-p", flags.top_p);
  options.seed = static_cast<uint64_t>(whole_number("--seed", flags.seed));
  command.batch_size = whole_number("--batch-size", flags.batch_size);
  MPX_CHECK(command.batch_size >= 1, "config", "--batch-size ", command.batch_size, " is below 1");
  options.more_stop_tokens = hf::end_token_ids(command.config.model);
  if (options.more_stop_tokens.empty() && command.tokenizer->eod()) options.stop_token = *command.tokenizer->eod();
  const bool of_chats = command.answers || std::any_of(command.lines.begin(), command.lines.end(),
                                                       [](const auto& line) { return line.chat.has_value(); });
  if (of_chats || command.dialog) {
    if (command.tokenizer->eod()) options.stop_token = *command.tokenizer->eod();
    const std::vector<int64_t>& ends = command.chatting->stop_tokens;
    options.more_stop_tokens.insert(options.more_stop_tokens.end(), ends.begin(), ends.end());
  }
}

// `first`: the arguments parsed without the checkpoint, to find the path; the checkpoint's config has lower
// precedence.
GenerateCommand generate_command(const RunArguments& first) {
  const config::Checkpoint& requested = first.config.checkpoint;
  GenerateCommand command;
  MPX_CHECK(requested.load.empty() || first.config.model.from.empty(), "config", "--load ", requested.load,
            " and --model.from ", first.config.model.from, " both name a model; leave one out");
  command.saved = find_saved_run(first.config, "the checkpoint to generate with");
  MPX_CHECK(requested.ckpt_step == 0 || !command.saved.directory.empty(), "config", "--ckpt-step ",
            requested.ckpt_step, ": '", first.config.model.from,
            "' is a Hugging Face directory, which has one state; leave it out");
  GenerateFlags flags;
  command.parsed = parse_run_arguments(first.arguments, flags.own_flags(), command.saved.config_yaml);
  config::Config& config = command.config = generation_config(command.parsed, command.saved.directory);
  config.checkpoint.allow = requested.allow;
  const std::string directory = command.saved.directory.empty() ? config.model.from : "";
  if (!command.saved.directory.empty()) config.model.from.clear();
  if (!names_tokenizer(first.config.data)) use_saved_tokenizer(command.saved, config.data);

  command.tokenizer = load_run_tokenizer(config.data);
  MPX_CHECK(command.tokenizer != nullptr, "config",
            "the checkpoint does not name a tokenizer; give --data.tokenizer_type and --data.tokenizer_model");
  if (config.model.vocab_size == 0) config.model.vocab_size = command.tokenizer->vocab_size();
  command.files = run_tokenizer_files(config.data);
  if (flags.may_chat())
    command.chatting = find_chatting(config.data, command.tokenizer, flags.chat_template, directory);
  if (command.chatting) command.chatting->system = flags.system;
  MPX_CHECK(config.parallel.cp() == 1, "config", "parallel.context_parallel_size = ", config.parallel.cp(),
            ": generation needs whole sequences on every rank; set it to 1");
  config = checked_config(config, planned_world_size(config.run), config::Use::evaluation);
  if (command.chatting) command.chatting->context = config.model.max_position_embeddings;
  if (!flags.no_special_tokens) command.special = command.tokenizer->special_tokens();
  take_prompts(flags, command);
  take_options(flags, command);
  check_lengths(flags, command);
  return command;
}

// Handles DIR as the first argument.
std::vector<std::string> with_named_directory(std::vector<std::string> arguments) {
  files::PosixFileSystem disk;
  if (arguments.empty() || arguments[0].starts_with("-") || !disk.is_directory(arguments[0])) return arguments;
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    MPX_CHECK(name != "--load" && name != "--checkpoint.load" && name != "--model.from", "config", "generate ",
              arguments[0], " and ", argument, " both name a model; leave one out");
  }
  const bool hugging_face = disk.exists(files::join_path(arguments[0], "config.json"));
  arguments[0] = (hugging_face ? "--model.from=" : "--load=") + arguments[0];
  return arguments;
}

void write_texts(const step::ProcessContext& process, step::RankModel& model, const GenerateCommand& command) {
  const bool speaks = process.world->rank() == 0;
  const auto whole = [&](size_t i, const std::vector<int64_t>& made) {
    std::vector<int32_t> all;
    // Removes the tokens that were added before the prompt.
    const auto added = static_cast<std::ptrdiff_t>(command.special.before.size());
    if (!command.answers) all.assign(command.texts[i].begin() + added, command.texts[i].end());
    all.insert(all.end(), made.begin(), made.end());
    return command.answers ? command.tokenizer->decode_skip_special(all) : command.tokenizer->decode(all);
  };
  const size_t step = command.lines.empty() ? 1 : static_cast<size_t>(command.batch_size);
  for (size_t begin = 0; begin < command.texts.size() && (!speaks || std::cout); begin += step) {
    const size_t end = std::min(begin + step, command.texts.size());
    const std::vector<std::vector<int64_t>> batch(command.texts.begin() + static_cast<std::ptrdiff_t>(begin),
                                                  command.texts.begin() + static_cast<std::ptrdiff_t>(end));
    const auto made = run::generate_batch(process, model, batch, command.options);
    for (size_t i = begin; speaks && i < end; ++i) {
      const std::vector<int64_t>& tokens = made[i - begin];
      if (command.lines.empty()) {
        write_text(whole(i, tokens));  // the text may contain NUL
        std::cout << std::endl;
      } else {
        std::cout << answer_line(command.lines[i],
                                 command.tokenizer->decode_skip_special({tokens.begin(), tokens.end()}))
                  << std::endl;
      }
    }
  }
}

}  // namespace

int run_generate(const std::vector<std::string>& arguments) {
  GenerateFlags flags;
  RunArguments first;
  before_ranks([&] { first = parse_run_arguments(with_named_directory(arguments), flags.own_flags()); });
  if (first.help) {
    std::cout << kGenerateUsage;
    return kExitOk;
  }
  GenerateCommand command;
  before_ranks([&] { command = generate_command(first); });
  const std::vector<std::string> line = command_line("generate", command.parsed.arguments);
  return launch_ranks(
      command.config, line,
      [&](const comm::World& world) {
        const SavedRun& saved = command.saved;
        const auto assembly =
            step::assemble(command.config, world, command.config.model.vocab_size, /*forward_only=*/true,
                           models::build_stage, nullptr, step::InitialValues::loaded);
        files::PosixFileSystem disk;
        run::LoadOutcome outcome;
        if (saved.directory.empty()) {
          run::load_from_directory(*assembly, disk);
        } else {
          outcome = run::load_state(*assembly, saved.directory, disk, {.tokenizer = command.files});
        }
        if (world.rank() == 0) {
          for (const std::string& problem : saved.problems) std::cerr << "warning: " << problem << "\n";
          if (!outcome.notes.empty()) std::cerr << "warning: " << outcome.notes << "\n";
        }
        if (command.dialog) run_dialog(assembly->process, assembly->model, *command.chatting, command.options);
        else write_texts(assembly->process, assembly->model, command);
      },
      command.dialog);
}

}  // namespace metroplex::apps
