#include "comm/failure.h"

#include <c10/util/Exception.h>

#include <new>
#include <system_error>

#include "base/out_of_memory.h"

namespace metroplex::comm {

std::string format_rank(int rank) { return "rank " + std::to_string(rank); }

// libtorch's CPU allocator has no error type of its own, so the message is compared.
static bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string(error.what_without_backtrace()).find("can't allocate memory") != std::string::npos;
}

static bool is_no_more_threads(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again;
}

bool is_peer_failure(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const PeerFailure&) { return true; } catch (...) {
    return false;
  }
}

std::string failure_cause(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    return (is_out_of_memory(error) ? std::string(base::kOutOfMemory) + ": " : "") + error.what_without_backtrace();
  } catch (const std::bad_alloc&) { return base::kOutOfMemory; } catch (const std::system_error& error) {
    return base::concat(error.what(), is_no_more_threads(error) ? ": " : "",
                        is_no_more_threads(error) ? base::kNoMoreThreads : "");
  } catch (const std::exception& error) { return error.what(); } catch (...) {
    return "an exception of an unknown type";
  }
}

std::exception_ptr with_rank(const std::exception_ptr& exception, const std::string& rank_name) {
  const std::string message = rank_name + " failed: ";
  try {
    std::rethrow_exception(exception);
  } catch (const PeerFailure&) { return exception; } catch (const base::Error& error) {
    const std::string prefix = "[" + error.room() + "] ";
    std::string text = error.what();
    if (text.rfind(prefix, 0) == 0) text.erase(0, prefix.size());
    return std::make_exception_ptr(base::Error(error.room(), message + text));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(base::Error("memory", message + failure_cause(exception)));
  } catch (const std::system_error& error) {
    const char* const room = is_no_more_threads(error) ? "memory" : "internal";
    return std::make_exception_ptr(base::Error(room, message + failure_cause(exception)));
  } catch (const c10::Error& error) {
    const char* const room = is_out_of_memory(error) ? "memory" : "internal";
    const std::string text = message + failure_cause(exception);
    const std::string stack = std::string(error.what()).substr(std::string(error.what_without_backtrace()).size());
    return std::make_exception_ptr(TorchFailure(room, text, base::concat("[", room, "] ", text, stack)));
  } catch (const std::logic_error& error) {
    return std::make_exception_ptr(std::logic_error(message + failure_cause(exception)));
  } catch (...) { return std::make_exception_ptr(base::Error("internal", message + failure_cause(exception))); }
}

}  // namespace metroplex::comm
