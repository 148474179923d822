#include "comm/backends/gloo_state.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <cstdint>

#include "base/error.h"
#include "comm/network.h"

namespace metroplex::comm {
namespace {

constexpr const char* kCome = "come";          // how many ranks have
constexpr const char* kBackend = "backend";    // of the first rank that came
constexpr const char* kDeciders = "deciders";  // the first of them writes the decision
constexpr const char* kDecision = "decision";  // empty: all have come; else the refusal
constexpr const char* kGone = "gone";          // how many know of the refusal
constexpr const char* kAllGone = "all gone";
// How long the store is kept for ranks that have not heard of a refusal.
constexpr std::chrono::milliseconds kPatience{20000};
// How long the name of the master may be unknown.
constexpr std::chrono::milliseconds kNamePatience{10000};

std::string come_key(int rank) { return "come/" + std::to_string(rank); }

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

void decide(c10d::Store& store, const std::string& decision) {
  if (store.add(kDeciders, 1) == 1) store.set(kDecision, as_bytes("-" + decision));  // an empty value is none
}

// The store goes with rank 0.
void leave_refused(c10d::Store& store, const GlooOptions& options) {
  if (store.add(kGone, 1) == options.world_size) store.set(kAllGone, as_bytes("-"));
  if (options.rank != 0 || options.agent_store) return;
  try {
    store.wait({kAllGone}, std::min(options.timeout, kPatience));
  } catch (const std::exception&) {
    // Who comes later finds no store.
  }
}

// Throws what a wait for all ranks that was in vain has to say.
[[noreturn]] void throw_missing(c10d::Store& store, const GlooOptions& options) {
  constexpr int kMostNamed = 8;
  std::string names;
  int missing = 0;
  try {
    for (int rank = 0; rank < options.world_size; ++rank) {
      if (store.check({come_key(rank)}) || ++missing > kMostNamed) continue;
      names += (names.empty() ? "" : ", ") + options.describe(rank);
    }
  } catch (const std::exception&) { throw PeerFailure(options.describe(0) + " ended while ranks were starting"); }
  if (missing > kMostNamed) names += base::concat(" and ", missing - kMostNamed, " more");
  throw base::Error("comm", base::concat(names, " did not start within ", seconds(options.timeout), " s"));
}

void check_backend(c10d::Store& store, const GlooOptions& options) {
  const std::string mine = options.full_mesh ? "gloo" : "nccl";
  const std::vector<uint8_t> bytes = store.compareSet(kBackend, {}, as_bytes(mine));
  const std::string first(bytes.begin(), bytes.end());
  MPX_CHECK(mine == first, "config", "this rank takes the backend ", mine, ", another one ", first,
            "; set run.backend and run.device, or give each rank of all machines a GPU");
}

}  // namespace

std::vector<uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::optional<std::string> look_up(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const std::vector<uint8_t> bytes = store.get(key);
  return std::string(bytes.begin(), bytes.end());
}

c10::intrusive_ptr<c10d::Store> open_store(const GlooOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = options.master_port;
  store.isServer = options.rank == 0 && !options.agent_store;
  store.waitWorkers = false;
  store.multiTenant = true;
  store.timeout = options.timeout;
  if (store.isServer && options.listen_fd >= 0) store.masterListenFd = options.listen_fd;
  const std::string where = options.master_addr + ":" + std::to_string(options.master_port);
  const std::string unknown = why_unknown(options.master_addr, std::min(options.timeout, kNamePatience));
  MPX_CHECK(unknown.empty(), "comm", "the master's name '", options.master_addr, "' leads to no address: ", unknown,
            "; check MASTER_ADDR (or the first host of Slurm's list), or give a numeric address");
  try {
    // An agent's store outlives an attempt: the next one must not read what the last one wrote.
    return c10::make_intrusive<c10d::PrefixStore>(base::concat("metroplex/attempt_", options.attempt),
                                                  c10::make_intrusive<c10d::TCPStore>(options.master_addr, store));
  } catch (const std::exception&) {
    const std::string error = cause_of(std::current_exception());
    const bool in_use =
        error.find("EADDRINUSE") != std::string::npos || error.find("already in use") != std::string::npos;
    MPX_CHECK(!in_use, "comm", "port ", options.master_port, " of ", options.master_addr,
              " is in use by another program; choose another master port, or leave it out where this program starts "
              "the ranks itself");
    throw base::Error("comm", base::concat("no connection to the rendezvous store of rank 0 at ", where, " within ",
                                           seconds(options.timeout), " s: ", error.substr(0, 300)));
  }
}

void meet(c10d::Store& store, const GlooOptions& options) {
  try {
    check_backend(store, options);
  } catch (const base::Error& error) {
    refuse(store, options, error.what());
    throw;
  }
  store.set(come_key(options.rank), as_bytes("-"));
  if (store.add(kCome, 1) == options.world_size) decide(store, "");
  try {
    store.wait({kDecision}, options.timeout);
  } catch (const std::exception&) { throw_missing(store, options); }
  const std::string refusal = look_up(store, kDecision).value_or("-").substr(1);
  if (refusal.empty()) return;
  leave_refused(store, options);
  throw PeerFailure(refusal);
}

void refuse(c10d::Store& store, const GlooOptions& options, const std::string& cause) {
  decide(store, options.describe(options.rank) + " could not start: " + cause);
  leave_refused(store, options);
}

void tell_refusal(GlooOptions options, const std::string& cause) {
  options.timeout = kPatience;
  try {
    refuse(*open_store(options), options, cause);
  } catch (const std::exception&) {
    // There is nobody to be told.
  }
}

}  // namespace metroplex::comm
