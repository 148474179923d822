#include "upper/run_tokenizer.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/validate.h"
#include "data/build.h"
#include "files/file_system.h"
#include "hf/directory.h"
#include "run_config.h"
#include "text/tokenizer.h"
#include "step/run_length.h"
#include "upper/chat.h"

namespace metroplex::apps {

// Sets the ids for exports: the tokenizer's, and the token that the chat template writes after an answer.
static void take_special_ids(const config::Data& data, const std::shared_ptr<const text::Tokenizer>& tokenizer,
                             config::Model& model) {
  if (!model.special_token_ids.empty() || !hf::end_token_ids(model).empty()) return;
  nlohmann::json ids = nlohmann::json::object();
  std::vector<int64_t> ends;
  if (tokenizer->eos()) ends.push_back(*tokenizer->eos());
  try {
    if (const auto chatting = find_chatting(data, tokenizer, "", ""))
      ends.insert(ends.end(), chatting->stop_tokens.begin(), chatting->stop_tokens.end());
  } catch (const base::Error&) {}  // the template is only needed for chats
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  if (tokenizer->bos()) ids["bos_token_id"] = *tokenizer->bos();
  if (ends.size() == 1) ids["eos_token_id"] = ends[0];
  if (ends.size() > 1) ids["eos_token_id"] = ends;
  if (tokenizer->pad()) ids["pad_token_id"] = *tokenizer->pad();
  if (!ids.empty()) model.special_token_ids = ids.dump();
}

std::unique_ptr<text::Tokenizer> load_run_tokenizer(const config::Data& data) {
  if (data.tokenizer_type == config::TokenizerType::none && data.tokenizer_model.empty()) return nullptr;
  return text::load_tokenizer(data.tokenizer_type.text(), data.tokenizer_model, data.vocab_file, data.merge_file);
}

std::shared_ptr<const text::TokenizerFiles> run_tokenizer_files(const config::Data& data) {
  return std::make_shared<const text::TokenizerFiles>(
      text::read_tokenizer_files(data.tokenizer_type.text(), data.tokenizer_model, data.vocab_file, data.merge_file));
}

run::TokenizerFacts tokenizer_facts(config::Config& config) {
  const std::shared_ptr<const text::Tokenizer> tokenizer = load_run_tokenizer(config.data);
  run::TokenizerFacts facts;
  facts.files = run_tokenizer_files(config.data);
  if (tokenizer) {
    const int64_t size = tokenizer->vocab_size();
    if (config.model.vocab_size == 0) config.model.vocab_size = size;
    const char* grows =
        config.model.from.empty() ? "" : ", which adds rows to the embedding and the head of model.from";
    MPX_CHECK(config.model.vocab_size < 0 || config.model.vocab_size >= size, "config",
              "model.vocab_size = ", config.model.vocab_size, ": the tokenizer has ", size,
              " ids; set model.vocab_size = 0 to use its size", grows);
    if (tokenizer->eod()) facts.eod = *tokenizer->eod();
    facts.words = text::identify_tokenizer(*tokenizer, *facts.files);
    take_special_ids(config.data, tokenizer, config.model);
  }
  facts.vocab_size = config.model.vocab_size;
  // Without a tokenizer the last id ends a document, as in Megatron's NullTokenizer.
  if (!tokenizer) facts.eod = facts.vocab_size - 1;
  return facts;
}

static void take_epochs(config::Config& config) {
  config::Train& train = config.train;
  // config::check rejects other length settings next to train_epochs.
  if (train.train_epochs <= 0 || train.train_iters != 0 || train.train_samples != 0 || train.seq_length <= 0) return;
  files::PosixFileSystem disk;
  train.train_samples = data::samples_of_epochs(config.data, disk, train.train_epochs,
                                                {train.seq_length, static_cast<uint64_t>(config.run.seed)});
  train.train_epochs = 0;  // fixes the length for this run and all resumed runs
}

config::Config checked_with_epochs(const config::Config& given, int64_t world_size) {
  config::Config config = given;
  take_epochs(config);
  config = checked_config(config, world_size);
  const plan::MicrobatchSchedule schedule =
      step::microbatch_schedule(config, config::data_parallel_size(config.parallel, world_size));
  MPX_CHECK(given.train.train_epochs == 0 || step::has_more_steps(config.train, schedule, 0, 0), "config",
            "train.train_epochs = ", given.train.train_epochs, ": has ", config.train.train_samples,
            " samples, less than one global batch of ", schedule.at(0, false).running_global_batch_size,
            "; raise train_epochs, give more data, or lower train.global_batch_size");
  return config;
}

}  // namespace metroplex::apps
