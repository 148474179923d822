#include "data/build.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "data/blend.h"
#include "data/chat_dataset.h"
#include "data/gpt_dataset.h"
#include "data/preprocess.h"
#include "files/checksum.h"

namespace metroplex::data {

namespace {

constexpr double kSurplus = 0.005;  // extra samples per dataset of a blend, against rounding
constexpr const char* kMockSplit = "1,1,1";
using Datasets = std::array<std::shared_ptr<const Dataset>, 3>;

class Builder {
 public:
  Builder(const config::Data& config, const BuildOptions& options, files::FileSystem& disk, IndexCache cache)
      : config_(config), options_(options), disk_(disk), cache_(std::move(cache)) {}

  Datasets from_source(std::shared_ptr<const TokenSource> source, const SplitBounds& bounds,
                       const std::array<int64_t, 3>& sizes) const {
    Datasets out;
    for (size_t i = 0; i < 3; ++i) {
      if (bounds[i] && sizes[i] != 0) out[i] = one_split(source, *bounds[i], i, sizes[i]);
    }
    return out;
  }

  // Throws like from_blend() for missing documents.
  void look(const Blend& blend, const SplitBounds& bounds, const std::array<int64_t, 3>& sizes) const {
    const auto wanted = built_of(blend, bounds, sizes);
    for (size_t d = 0; d < blend.prefixes.size(); ++d) {
      const auto source = open(blend.prefixes[d]);
      for (size_t i = 0; i < 3; ++i) {
        if (bounds[i]) list_documents(source, *bounds[i], i, wanted[d][i]);
      }
    }
  }

  // Returns the first order_problem of the datasets that from_blend() would build; "" if there is none.
  std::string order_problem(const Blend& blend, const SplitBounds& bounds,
                            const std::array<int64_t, 3>& sizes) const {
    const auto wanted = built_of(blend, bounds, sizes);
    for (size_t d = 0; d < blend.prefixes.size(); ++d) {
      std::string problem = order_problem(open(blend.prefixes[d]), bounds, wanted[d]);
      if (!problem.empty()) return problem;
    }
    return "";
  }

  std::string order_problem(const std::shared_ptr<const TokenSource>& source, const SplitBounds& bounds,
                            const std::array<int64_t, 3>& sizes) const {
    if (source->holds_chats()) return "";  // chats are packed whole and have another index
    for (size_t i = 0; i < 3; ++i) {
      if (!bounds[i] || sizes[i] == 0) continue;
      const std::vector<int32_t> documents = list_documents(source, *bounds[i], i, sizes[i]);
      if (documents.empty()) continue;
      std::string problem = data::order_problem(*source, documents, gpt_options(i, sizes[i]));
      if (!problem.empty()) return problem;
    }
    return "";
  }

  Datasets from_blend(const Blend& blend, const SplitBounds& bounds, const std::array<int64_t, 3>& sizes) const {
    if (blend.prefixes.size() == 1 && !blend.weights) return from_source(open(blend.prefixes[0]), bounds, sizes);
    const auto built = built_of(blend, bounds, sizes);
    std::vector<double> weights;
    std::vector<std::array<int64_t, 3>> wanted(blend.prefixes.size(), {-1, -1, -1});
    if (blend.weights) {
      weights = normalize(*blend.weights);
      wanted = sizes_per_dataset(weights, sizes, 0.0);
    }
    std::vector<Datasets> parts;
    for (size_t d = 0; d < blend.prefixes.size(); ++d)
      parts.push_back(from_source(open(blend.prefixes[d]), bounds, built[d]));

    Datasets out;
    for (size_t i = 0; i < 3; ++i) {
      if (!bounds[i] || sizes[i] == 0) continue;
      std::vector<std::shared_ptr<const Dataset>> datasets;
      std::vector<double> shares = weights;
      int64_t size = 0;
      for (size_t d = 0; d < parts.size(); ++d) {
        datasets.push_back(parts[d][i]);
        const int64_t samples = datasets[d] ? datasets[d]->size() : 0;
        if (!blend.weights) shares.push_back(static_cast<double>(samples));
        size += blend.weights ? wanted[d][i] : samples;
      }
      const bool exhaustive = !blend.weights && sizes[i] < 0;
      if (!blend.weights && sizes[i] >= 0) size = std::min(size, sizes[i]);
      out[i] = std::make_shared<BlendedDataset>(std::move(datasets), std::move(shares),
                                                exhaustive ? std::optional<int64_t>{} : std::optional<int64_t>{size},
                                                kSplitNames[i], cache_);
    }
    return out;
  }

  // Equal results mean equal sample counts from equal sources.
  TrainOrder train_order(const Blend& blend, const SplitBounds& bounds, const std::array<int64_t, 3>& sizes) const {
    const auto built = built_of(blend, bounds, sizes);
    std::string identity, laid_out;
    for (size_t d = 0; d < blend.prefixes.size(); ++d) {
      const auto source = open(blend.prefixes[d]);
      identity += source->fingerprint();
      if (blend.weights && blend.prefixes.size() > 1) identity += base::concat(" ", normalize(*blend.weights)[d]);
      identity += "\n";
      laid_out += (d > 0 ? ", " : "") + epochs(*source, *bounds[0], built[d][0]);
    }
    return {files::to_hex(files::checksum(identity.data(), identity.size())), laid_out};
  }

  std::string epochs(const TokenSource& source, const std::pair<double, double>& bounds, int64_t size) const {
    // The first samples of chats do not depend on the number of epochs.
    if (source.holds_chats()) return "of chats";
    const auto [begin, end] = split_range(bounds, source.num_sequences());
    int64_t tokens = 0;
    for (int64_t document = begin; document < end; ++document) tokens += source.length(document);
    if (tokens == 0) return "0";
    const EpochLayout layout = epoch_layout(tokens, index_options(size));
    return base::concat(layout.num_epochs, layout.separate_final_epoch ? " (the last apart)" : "");
  }

 private:
  GptIndexOptions index_options(int64_t size) const {
    return {options_.sequence_length, size, static_cast<uint32_t>(options_.seed), true, true};
  }

  ChatOptions chat_options(const std::string& split, int64_t size) const {
    return {options_.sequence_length, size, static_cast<uint32_t>(options_.seed), options_.vocab_size, split};
  }

  static std::vector<std::array<int64_t, 3>> built_of(const Blend& blend, const SplitBounds& bounds,
                                                      const std::array<int64_t, 3>& sizes) {
    if (blend.weights) {
      check_weights(blend, bounds, sizes);
      return sizes_per_dataset(normalize(*blend.weights), sizes, kSurplus);
    }
    if (blend.prefixes.size() == 1) return {sizes};
    return std::vector<std::array<int64_t, 3>>(blend.prefixes.size(), {-1, -1, -1});
  }

  std::shared_ptr<const TokenSource> open(const std::string& prefix) const {
    const std::string way = way_from_text(disk_, prefix, config_);
    MPX_CHECK(way.empty(), "data", way);
    refuse_loss_mask(prefix);
    if (!holds_chats(disk_, prefix)) return std::make_shared<IndexedSource>(disk_, prefix);
    MPX_CHECK(config_.reset_position_ids && config_.reset_attention_mask, "config", "'", prefix,
              "' contains chats, and a sample can contain several: set data.reset_position_ids = true and "
              "data.reset_attention_mask = true, so that no chat attends to another");
    return std::make_shared<ChatSource>(disk_, prefix);
  }

  GptOptions gpt_options(size_t split, int64_t size) const {
    GptOptions gpt;
    gpt.index = index_options(size);
    gpt.split = kSplitNames[split];
    gpt.eod = options_.eod;
    gpt.reset_position_ids = config_.reset_position_ids;
    gpt.reset_attention_mask = config_.reset_attention_mask;
    gpt.eod_mask_loss = config_.eod_mask_loss;
    gpt.vocab_size = options_.vocab_size;
    return gpt;
  }

  static void check_weights(const Blend& blend, const SplitBounds& bounds, const std::array<int64_t, 3>& sizes) {
    for (size_t d = 0; d < blend.prefixes.size(); ++d)
      MPX_CHECK((*blend.weights)[d] > 0, "data", "dataset '", blend.prefixes[d], "' has weight ", (*blend.weights)[d],
                "; weights must be positive; omit the dataset");
    for (size_t i = 0; i < 3; ++i)
      MPX_CHECK(!bounds[i] || sizes[i] >= 0, "data", "split ", kSplitNames[i],
                ": weights require a number of samples; omit the weights to read every sample once");
  }

  std::string way_to_fill(size_t split, int64_t documents) const {
    static constexpr const char* kFair = "80,10,10";
    const auto [begin, end] = split_range(*split_bounds(parse_split(kFair))[split], documents);
    const std::string none = split == 0 ? "" : ", or use no samples of this split (train.eval_iters = 0)";
    if (end > begin)
      return base::concat("data.split is '", config_.split, "': increase its share (", kFair, " would give it ",
                          end - begin, ")", none);
    return "create more and shorter documents (metroplex preprocess --split-documents ends a document at a blank "
           "line)" +
           none;
  }

  // Returns the documents of a split; empty if it has no tokens. Throws in that case if `size` samples are requested.
  std::vector<int32_t> list_documents(const std::shared_ptr<const TokenSource>& source,
                                      const std::pair<double, double>& bounds, size_t split, int64_t size) const {
    const auto [begin, end] = split_range(bounds, source->num_sequences());
    MPX_CHECK(source->num_sequences() <= 0x7fffffff, "data", "'", source->name(), "' has ", source->num_sequences(),
              " documents; the maximum is 2147483647");
    std::vector<int32_t> documents(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
    std::iota(documents.begin(), documents.end(), static_cast<int32_t>(begin));
    const bool has_tokens =
        std::any_of(documents.begin(), documents.end(), [&](int32_t d) { return source->length(d) > 0; });
    MPX_CHECK(has_tokens || size <= 0, "data", "split ", kSplitNames[split], " of '", source->name(), "' has ",
              documents.size(), " of its ", source->num_sequences(), " documents and no tokens, but ", size,
              " samples are required; ", way_to_fill(split, source->num_sequences()));
    if (!has_tokens) documents.clear();
    return documents;
  }

  std::shared_ptr<const Dataset> one_split(const std::shared_ptr<const TokenSource>& source,
                                           const std::pair<double, double>& bounds, size_t split,
                                           int64_t size) const {
    const std::vector<int32_t> documents = list_documents(source, bounds, split, size);
    if (documents.empty()) return nullptr;
    if (source->holds_chats())
      return std::make_shared<ChatDataset>(source, documents, chat_options(kSplitNames[split], size), cache_);
    auto dataset = std::make_shared<GptDataset>(source, documents, gpt_options(split, size), cache_);
    return dataset->size() > 0 ? dataset : nullptr;
  }

  const config::Data& config_;
  const BuildOptions& options_;
  files::FileSystem& disk_;
  IndexCache cache_;
};

std::string cache_directory(const config::Data& config) {
  if (!config.data_cache_path.empty() || config.mock_data) return config.data_cache_path;
  for (const auto* words :
       {&config.data_path, &config.train_data_path, &config.valid_data_path, &config.test_data_path}) {
    if (const auto blend = parse_blend(*words))
      return files::join_path(files::parent_directory(blend->prefixes[0]), "cache");
  }
  return "";
}

SplitBounds whole_split(size_t split) {
  SplitBounds bounds;
  bounds[split] = {0.0, 1.0};
  return bounds;
}

std::array<const std::vector<std::string>*, 3> own_paths(const config::Data& config) {
  return {&config.train_data_path, &config.valid_data_path, &config.test_data_path};
}

struct Part {
  Blend blend;
  SplitBounds bounds;
  std::array<int64_t, 3> sizes{};
};

// Returns the blends of a split: one, or one per dataset of data.valid_data_path with data.multiple_validation_sets.
std::vector<Blend> blends_of_split(const config::Data& config, size_t split) {
  auto blend = parse_blend(*own_paths(config)[split]);
  if (!blend) return {};
  if (blend->prefixes.size() == 1) blend->weights.reset();
  if (split != 1 || !config.multiple_validation_sets) return {std::move(*blend)};
  MPX_CHECK(!blend->weights, "config",
            "data.valid_data_path: weights have no meaning with data.multiple_validation_sets = true; list the "
            "datasets without weights");
  std::vector<Blend> each;
  for (const std::string& prefix : blend->prefixes) each.push_back({{prefix}, std::nullopt});
  return each;
}

// Returns one Part for all three splits, or Parts for each split with its own paths.
std::vector<Part> make_parts(const config::Data& config, const BuildOptions& options) {
  if (auto all = parse_blend(config.data_path))
    return {{std::move(*all), split_bounds(parse_split(config.split)), options.sizes}};
  std::vector<Part> parts;
  for (size_t i = 0; i < 3; ++i) {
    for (Blend& blend : blends_of_split(config, i)) {
      Part& part = parts.emplace_back(Part{std::move(blend), whole_split(i)});
      part.sizes[i] = options.sizes[i];
    }
  }
  return parts;
}

}  // namespace

static void check_tokenizers(const config::Data& config, const BuildOptions& options, files::FileSystem& disk) {
  if (config.mock_data || config.allow_other_tokenizer || options.tokenizer.empty()) return;
  for (const Part& part : make_parts(config, options)) {
    for (const std::string& prefix : part.blend.prefixes) {
      const std::string recorded = recorded_tokenizer(disk, prefix);
      MPX_CHECK(recorded.empty() || recorded == options.tokenizer, "data", "dataset '", prefix,
                "': its tokens were made with the tokenizer ", recorded, ", but the tokenizer of this run is ",
                options.tokenizer,
                "; set data.tokenizer_model to the tokenizer of the data, run metroplex preprocess again, or set "
                "data.allow_other_tokenizer = true if both produce the same ids");
    }
  }
}

Splits build_datasets(const config::Data& config, const BuildOptions& options, files::FileSystem& disk) {
  const auto own = own_paths(config);
  const bool per_split = std::any_of(own.begin(), own.end(), [](const auto* words) { return !words->empty(); });
  MPX_CHECK(options.seed <= 0xffffffffu, "data", "run.seed = ", options.seed,
            ": the order of the data requires a 32-bit seed");
  MPX_CHECK(
      config.mock_data + per_split + !config.data_path.empty() == 1, "data",
      "exactly one of data.data_path, data.train_data_path (with valid and test) and data.mock_data must be set; ",
      config.mock_data + per_split + !config.data_path.empty(), " are set");

  check_tokenizers(config, options, disk);
  // The datasets hold mapped bytes but no reference to the disk, which may be destroyed after this.
  const Builder builder(config, options, disk, IndexCache(disk, cache_directory(config)));
  Splits splits;
  const auto add = [&splits](const Datasets& made) {
    if (made[0]) splits.train = made[0];
    if (made[1]) splits.valid.push_back(made[1]);
    if (made[2]) splits.test = made[2];
  };
  if (config.mock_data) {
    const auto source = std::make_shared<MockSource>(options.vocab_size, options.eod);
    add(builder.from_source(source, split_bounds(parse_split(kMockSplit)), options.sizes));
  }
  for (const Part& part : make_parts(config, options)) {
    const Datasets made = builder.from_blend(part.blend, part.bounds, part.sizes);
    MPX_CHECK(!config.multiple_validation_sets || !part.bounds[1] || part.sizes[1] == 0 || made[1], "data",
              "data.valid_data_path = ", part.blend.prefixes[0], ": contains no samples; omit it");
    add(made);
  }
  splits.train_order = train_order(config, options, disk);
  return splits;
}

TrainOrder train_order(const config::Data& config, const BuildOptions& options, files::FileSystem& disk) {
  const Builder builder(config, options, disk, IndexCache(disk, ""));
  if (config.mock_data) {
    const MockSource source(options.vocab_size, options.eod);
    return {source.fingerprint(),
            builder.epochs(source, *split_bounds(parse_split(kMockSplit))[0], options.sizes[0])};
  }
  for (const Part& part : make_parts(config, options)) {
    if (part.bounds[0]) return builder.train_order(part.blend, part.bounds, part.sizes);
  }
  return {"none", "0"};
}

std::string datasets_without_ends(const config::Data& config, int64_t eod, files::FileSystem& disk) {
  constexpr int64_t kDocuments = 100;
  std::string found;
  const auto has_end = [eod](const IndexedSource& source, int64_t document) {
    std::vector<int64_t> tokens(static_cast<size_t>(source.length(document)));
    source.read(document, 0, source.length(document), tokens.data());
    return std::find(tokens.begin(), tokens.end(), eod) != tokens.end();
  };
  for (const Part& part : config.mock_data ? std::vector<Part>{} : make_parts(config, {})) {
    for (const std::string& prefix : part.blend.prefixes) {
      if (holds_chats(disk, prefix)) continue;
      const IndexedSource source(disk, prefix);
      bool ends = source.num_sequences() == 0;
      for (int64_t d = 0; d < std::min(kDocuments, source.num_sequences()) && !ends; ++d) ends = has_end(source, d);
      if (!ends) found += (found.empty() ? "'" : ", '") + prefix + "'";
    }
  }
  return found;
}

void check_splits(const config::Data& config, const BuildOptions& options, files::FileSystem& disk) {
  if (config.mock_data) return;
  check_tokenizers(config, options, disk);
  const Builder builder(config, options, disk, IndexCache(disk, ""));
  bool trains = false;
  for (const Part& part : make_parts(config, options)) {
    builder.look(part.blend, part.bounds, part.sizes);
    trains = trains || part.bounds[0].has_value();
  }
  MPX_CHECK(trains, "data", "the training split has no samples; set its share in data.split");
}

std::string order_problem(const config::Data& config, const BuildOptions& options, files::FileSystem& disk) {
  const Builder builder(config, options, disk, IndexCache(disk, ""));
  if (config.mock_data) {
    const auto source = std::make_shared<MockSource>(options.vocab_size, options.eod);
    return builder.order_problem(source, split_bounds(parse_split(kMockSplit)), options.sizes);
  }
  for (const Part& part : make_parts(config, options)) {
    std::string problem = builder.order_problem(part.blend, part.bounds, part.sizes);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace metroplex::data
