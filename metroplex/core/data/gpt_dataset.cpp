#include "data/gpt_dataset.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/error.h"
#include "base/free_memory.h"
#include "files/checksum.h"

namespace metroplex::data {

namespace {

std::string describe(const TokenSource& source, std::span<const int32_t> documents, const GptOptions& options) {
  const auto& index = options.index;
  return base::concat("GPT dataset order, version 1\nsource ", source.name(), "\nsource fingerprint ",
                      source.fingerprint(), "\nsplit ", options.split, "\ndocuments ", documents.size(), " sum ",
                      files::to_hex(files::checksum(documents.data(), documents.size_bytes())), "\nsequence length ",
                      index.sequence_length, "\nsamples ", index.num_samples, "\nseed ", index.seed, "\nextra token ",
                      index.add_extra_token, "\ndrop last partial ", index.drop_last_partial, "\n");
}

std::string whole(double number) {
  char text[64];
  std::snprintf(text, sizeof text, "%.0f", number);
  return text;
}

IndexArrays build_arrays(const TokenSource& source, std::span<const int32_t> documents, const GptOptions& options) {
  const std::string problem = order_problem(source, documents, options);
  MPX_CHECK(problem.empty(), "config", problem);
  std::vector<int32_t> lengths(static_cast<size_t>(source.num_sequences()));
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = source.length(static_cast<int64_t>(i));
  GptIndex index = build_gpt_index(lengths, documents, options.index);
  const auto rows = static_cast<int64_t>(index.sample_index.size() / 2);
  IndexArrays arrays;
  arrays.add("document_index", std::move(index.document_index));
  arrays.add("sample_index", std::move(index.sample_index), {rows, 2});
  arrays.add("shuffle_index", std::move(index.shuffle_index));
  return arrays;
}

// Restarts positions and documents after each of `ends` (positions one past the last token of a document).
void restart_at(std::span<const int64_t> ends, bool positions, bool documents, Sample& sample) {
  const auto length = static_cast<int64_t>(sample.tokens.size());
  int64_t begin = 0;
  int32_t document = 0;
  const auto fill = [&](int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (positions) sample.position_ids[static_cast<size_t>(i)] = i - begin;
      if (documents) sample.document_ids[static_cast<size_t>(i)] = document;
    }
    begin = end;
    ++document;
  };
  for (const int64_t end : ends) {
    if (end > begin && end < length) fill(end);
  }
  fill(length);
}

}  // namespace

std::string order_problem(const TokenSource& source, std::span<const int32_t> documents, const GptOptions& options) {
  int64_t tokens = 0;
  for (const int32_t document : documents) tokens += source.length(document);
  const IndexNeed need = index_need(static_cast<int64_t>(documents.size()), tokens, options.index);
  const auto free = base::free_memory();
  if (!free || need.bytes <= static_cast<double>(free->bytes)) return "";
  return base::concat("split ", options.split, " of '", source.name(), "': the order of ", whole(need.samples),
                      " samples of ", options.index.sequence_length, " tokens (", whole(need.epochs),
                      " epochs) takes ", whole(need.bytes), " bytes of memory, but ", free->bytes, " are free (",
                      free->from, "); reduce the number of samples (train.train_iters, train.train_samples, ",
                      "train.eval_iters), or provide more memory");
}

void fill_masks(const GptOptions& options, Sample& sample) {
  const size_t length = sample.tokens.size();
  sample.loss_mask.assign(length, 1.0f);
  sample.position_ids.resize(length);
  std::iota(sample.position_ids.begin(), sample.position_ids.end(), 0);
  sample.document_ids.assign(options.reset_attention_mask ? length : 0, 0);
  if (options.eod_mask_loss) {
    for (size_t i = 0; i < length; ++i) {
      if (sample.tokens[i] == options.eod) sample.loss_mask[i] = 0.0f;
    }
  }
  if (!options.reset_position_ids && !options.reset_attention_mask) return;
  std::vector<int64_t> ends;
  for (size_t i = 0; i < length; ++i) {
    if (sample.tokens[i] == options.eod) ends.push_back(static_cast<int64_t>(i) + 1);
  }
  restart_at(ends, options.reset_position_ids, options.reset_attention_mask, sample);
}

GptDataset::GptDataset(std::shared_ptr<const TokenSource> source, std::span<const int32_t> documents,
                       const GptOptions& options, const IndexCache& cache)
    : source_(std::move(source)), options_(options) {
  const bool needs_eod = options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss;
  MPX_CHECK(!needs_eod || options.eod >= 0, "data",
            "data.reset_position_ids, data.reset_attention_mask and data.eod_mask_loss need an end-of-document "
            "token, but the tokenizer has none; choose another tokenizer or turn these options off");
  entry_ = cache.get("GPTDataset-" + options.split, describe(*source_, documents, options),
                     [&] { return build_arrays(*source_, documents, options); });
  document_index_ = entry_.array<int32_t>("document_index");
  sample_index_ = entry_.array<int64_t>("sample_index");
  shuffle_index_ = entry_.array<int64_t>("shuffle_index");
}

void GptDataset::read_tokens(int64_t sample, std::vector<int64_t>& text, std::vector<int64_t>& part_ends) const {
  const int64_t extra = options_.index.add_extra_token ? 1 : 0, wanted = options_.index.sequence_length + extra;
  const size_t row = 2 * static_cast<size_t>(sample);
  const int64_t first = sample_index_[row], last = sample_index_[row + 2];
  const int64_t first_offset = sample_index_[row + 1], last_end = sample_index_[row + 3] + extra;
  text.resize(static_cast<size_t>(wanted));
  part_ends.clear();
  int64_t at = 0;
  for (int64_t position = first; position <= last; ++position) {
    const int64_t document = document_index_[static_cast<size_t>(position)];
    const int64_t begin = position == first ? first_offset : 0;
    const int64_t end = position == last ? last_end : source_->length(document);
    MPX_ASSERT(begin <= end && at + end - begin <= wanted, "sample ", sample, " of '", source_->name(), "'");
    source_->read(document, begin, end - begin, text.data() + at);
    at += end - begin;
    part_ends.push_back(at);
  }
  std::fill(text.begin() + at, text.end(), options_.pad);
}

void GptDataset::check_tokens(std::span<const int64_t> text, int64_t index) const {
  if (options_.vocab_size <= 0) return;
  for (const int64_t token : text) {
    MPX_CHECK((token >= 0 && token < options_.vocab_size) || token == options_.pad, "data", "'", source_->name(),
              ".bin': token ", token, " in sample ", index, " of ", options_.split, " is outside the vocabulary of ",
              options_.vocab_size, "; the data was made with a different tokenizer, or was altered");
  }
}

void GptDataset::get(int64_t index, Sample& out) const {
  MPX_ASSERT(index >= -1 && index < size() && size() > 0, "sample ", index, " of ", size());
  std::vector<int64_t> text, part_ends;
  read_tokens(shuffle_index_[static_cast<size_t>(std::max<int64_t>(index, 0))], text, part_ends);
  check_tokens(text, index);

  const auto length = options_.index.sequence_length;
  out.index = index;
  out.tokens.assign(text.begin(), text.begin() + length);
  out.labels.assign(text.begin() + 1, text.end());
  if (!options_.index.add_extra_token) out.labels.push_back(options_.pad);
  fill_masks(options_, out);
  if (options_.inter_document_masking) {
    // A part with only the extra token, and padding, belong to the previous document.
    part_ends.pop_back();
    out.document_ids.assign(static_cast<size_t>(length), 0);
    restart_at(part_ends, true, true, out);
  }
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    if (out.labels[i] == options_.pad) {
      out.loss_mask[i] = 0.0f;
      out.labels[i] = 0;
    }
    if (out.tokens[i] == options_.pad) out.tokens[i] = 0;
  }
  if (index < 0) std::fill(out.loss_mask.begin(), out.loss_mask.end(), 0.0f);
}

}  // namespace metroplex::data
