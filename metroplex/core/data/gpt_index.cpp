#include "data/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace metroplex::data {

namespace {

constexpr double kFinalEpochThreshold = 0.80;

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

void append_epochs(std::span<const int32_t> documents, int64_t num_epochs, RandomState& random,
                   std::vector<int32_t>& out) {
  const size_t start = out.size();
  for (int64_t epoch = 0; epoch < num_epochs; ++epoch) out.insert(out.end(), documents.begin(), documents.end());
  random.shuffle(out.data() + start, static_cast<int64_t>(out.size() - start));
}

}  // namespace

std::vector<int32_t> build_document_index(std::span<const int32_t> documents, int64_t num_epochs,
                                          bool separate_final_epoch, RandomState& random) {
  std::vector<int32_t> out;
  out.reserve(documents.size() * static_cast<size_t>(num_epochs));
  const bool apart = separate_final_epoch && num_epochs > 1;
  append_epochs(documents, apart ? num_epochs - 1 : num_epochs, random, out);
  if (apart) append_epochs(documents, 1, random, out);
  return out;
}

std::vector<int64_t> build_sample_index(std::span<const int32_t> lengths, std::span<const int32_t> document_index,
                                        int64_t num_tokens, const GptIndexOptions& options) {
  const int64_t extra = options.add_extra_token ? 1 : 0, step = options.sequence_length;
  const int64_t usable = std::max<int64_t>(num_tokens - extra, 0);
  const int64_t samples = options.drop_last_partial ? usable / step : (usable + step - 1) / step;

  std::vector<int64_t> rows(2 * static_cast<size_t>(samples + 1), 0);
  const int64_t num_documents = static_cast<int64_t>(document_index.size());
  const auto length_at = [&](int64_t position) -> int64_t {
    return lengths[static_cast<size_t>(document_index[static_cast<size_t>(position)])];
  };
  int64_t position = 0, offset = 0;
  for (int64_t sample = 1; sample <= samples; ++sample) {
    for (int64_t wanted = step + extra; wanted > 0;) {
      const int64_t here = length_at(position) - offset;
      if (here >= wanted) {
        offset += wanted - extra;
        wanted = 0;
      } else if (position + 1 == num_documents) {  // a partial last sample ends with the last token
        offset = length_at(position) - extra;
        wanted = 0;
      } else {
        wanted -= here;
        ++position;
        offset = 0;
      }
    }
    rows[2 * static_cast<size_t>(sample)] = position;
    rows[2 * static_cast<size_t>(sample) + 1] = offset;
  }
  return rows;
}

std::vector<int64_t> build_shuffle_index(int64_t first, int64_t total, RandomState& random) {
  std::vector<int64_t> out(static_cast<size_t>(total));
  std::iota(out.begin(), out.end(), 0);
  random.shuffle(out.data(), first);
  random.shuffle(out.data() + first, total - first);
  return out;
}

IndexNeed index_need(int64_t documents, int64_t tokens, const GptIndexOptions& options) {
  const auto per_epoch = static_cast<double>(tokens), step = static_cast<double>(options.sequence_length);
  IndexNeed need;
  if (tokens <= 0 || options.sequence_length <= 0) return need;
  if (options.num_samples > 0)
    need.epochs = std::max(1.0, std::ceil((static_cast<double>(options.num_samples) * step + 1) / per_epoch));
  need.samples = std::floor(need.epochs * per_epoch / step);
  need.bytes = 40 * need.samples + 4 * need.epochs * static_cast<double>(documents);
  return need;
}

EpochLayout epoch_layout(int64_t tokens_per_epoch, const GptIndexOptions& options) {
  const int64_t extra = options.add_extra_token ? 1 : 0, step = options.sequence_length;
  EpochLayout out;
  out.tokens_per_epoch = tokens_per_epoch;
  if (options.num_samples > 0) {
    const int64_t wanted = options.num_samples * step + extra;
    out.num_epochs = (wanted + tokens_per_epoch - 1) / tokens_per_epoch;
  }
  if (out.num_epochs > 1) {
    out.samples_sans_final_epoch = floor_divide((out.num_epochs - 1) * tokens_per_epoch - extra, step);
    out.samples_per_epoch = floor_divide(tokens_per_epoch - extra, step);
    const int64_t from_final = options.num_samples - out.samples_sans_final_epoch;
    out.separate_final_epoch =
        from_final < static_cast<int64_t>(kFinalEpochThreshold * static_cast<double>(out.samples_per_epoch));
  }
  return out;
}

GptIndex build_gpt_index(std::span<const int32_t> lengths, std::span<const int32_t> documents,
                         const GptIndexOptions& options) {
  MPX_CHECK(options.sequence_length > 0, "data", "sequence length ", options.sequence_length, " must be positive");
  int64_t per_epoch = 0;
  for (const int32_t document : documents) per_epoch += lengths[static_cast<size_t>(document)];
  MPX_CHECK(per_epoch > 0, "data", "the ", documents.size(), " documents contain no tokens");

  GptIndex index{epoch_layout(per_epoch, options), {}, {}, {}};
  RandomState random(options.seed);
  index.document_index = build_document_index(documents, index.num_epochs, index.separate_final_epoch, random);
  index.sample_index = build_sample_index(lengths, index.document_index, index.num_epochs * per_epoch, options);
  const int64_t samples = static_cast<int64_t>(index.sample_index.size()) / 2 - 1;
  index.shuffle_index =
      build_shuffle_index(index.separate_final_epoch ? index.samples_sans_final_epoch : samples, samples, random);
  return index;
}

}  // namespace metroplex::data
