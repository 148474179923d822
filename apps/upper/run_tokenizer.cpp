#include "upper/run_tokenizer.h"

#include "base/error.h"
#include "text/tokenizer.h"

namespace metroplex::apps {

std::unique_ptr<text::Tokenizer> load_run_tokenizer(const config::Data& data) {
  if (data.tokenizer_type == config::TokenizerType::none && data.tokenizer_model.empty()) return nullptr;
  return text::load_tokenizer(data.tokenizer_type.text(), data.tokenizer_model, data.vocab_file, data.merge_file);
}

std::shared_ptr<const text::TokenizerFiles> run_tokenizer_files(const config::Data& data) {
  return std::make_shared<const text::TokenizerFiles>(
      text::read_tokenizer_files(data.tokenizer_type.text(), data.tokenizer_model, data.vocab_file, data.merge_file));
}

train::TokenizerFacts tokenizer_facts(config::Config& config) {
  const auto tokenizer = load_run_tokenizer(config.data);
  train::TokenizerFacts facts;
  facts.files = run_tokenizer_files(config.data);
  if (tokenizer) {
    const int64_t size = tokenizer->vocab_size();
    if (config.model.vocab_size == 0) config.model.vocab_size = size;
    MPX_CHECK(config.model.vocab_size < 0 || config.model.vocab_size >= size, "config",
              "model.vocab_size = ", config.model.vocab_size, " is smaller than the tokenizer's ", size,
              "; leave it 0 to take the tokenizer's");
    if (tokenizer->eod()) facts.eod = *tokenizer->eod();
    facts.words = text::words_of(*tokenizer, *facts.files);
  }
  facts.vocab_size = config.model.vocab_size;
  // Without a tokenizer the last id ends a document, as Megatron's NullTokenizer has it.
  if (!tokenizer) facts.eod = facts.vocab_size - 1;
  return facts;
}

}  // namespace metroplex::apps
