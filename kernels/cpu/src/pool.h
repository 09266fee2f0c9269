// A few threads that walk through one forward pass side by side.
//
// All of them run the same function; between two phases of it they meet at a barrier. A forward pass has about 150 phases
// of 20 to 100 microseconds, so waiting inside a pass is spinning (a system call would cost as much as a phase), but only
// for a while: if the other thread has lost its core to someone else, spinning would keep it from getting it back.
// Between passes the workers sleep and burn nothing: the page that draws the result shares these cores.
//
// Not OpenMP: torch brings its own OpenMP threads, and two pools that spin on the same two cores take turns, not time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "simd.h"

namespace tbt {

constexpr int kMaxThreads = 64;
constexpr int kSpinsBeforeYield = 4000;
constexpr int kSpinsBeforeSleep = 2000;  // some tens of microseconds, then the core is free for others

class Pool {
 public:
  using Task = void (*)(void* argument, int thread);

  explicit Pool(int num_threads) : num_threads_(num_threads) {
    for (int t = 1; t < num_threads_; ++t) threads_.emplace_back([this, t] { work(t); });
  }

  // Not to be called after fork() in the child, where the threads do not exist: a pool is left behind there.
  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      stop_.store(true);
      round_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return num_threads_; }

  // Run task(argument, t) on every thread t; the caller is thread 0. Returns when all are done.
  void run(Task task, void* argument) {
    task_ = task;
    argument_ = argument;
    running_.store(num_threads_ - 1, std::memory_order_relaxed);
    bool wake = false;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      round_.fetch_add(1, std::memory_order_release);
      wake = sleeping_ > 0;
    }
    if (wake) wake_.notify_all();
    task(argument, 0);
    for (int spins = 0; running_.load(std::memory_order_acquire) > 0; ++spins) spin(spins);
  }

  // Inside run(): share out `units` of work, then meet. Each thread starts with its own contiguous part, because memory
  // is fastest when each core reads one long stream, and takes units of the others when it is done, because cores are
  // not equally fast when other programs run too.
  template <class Body>
  void for_each(int thread, int units, Body&& body) {
    for (int i = 0; i < num_threads_; ++i) {
      const int owner = (thread + i) % num_threads_;
      const int first = static_cast<int>(static_cast<int64_t>(units) * owner / num_threads_);
      const int last = static_cast<int>(static_cast<int64_t>(units) * (owner + 1) / num_threads_);
      for (;;) {
        const int unit = first + taken_[owner].count.fetch_add(1, std::memory_order_relaxed);
        if (unit >= last) break;
        body(unit);
      }
    }
    meet();
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int> count{0};
  };

  // The last to arrive resets the counters while nobody can be looking at them, then lets all go on.
  void meet() {
    const int phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
      for (int t = 0; t < num_threads_; ++t) taken_[t].count.store(0, std::memory_order_relaxed);
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) spin(spins);
  }

  static void spin(int spins) {
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }

  void work(int thread) {
    int seen = 0;
    for (;;) {
      for (int spins = 0; round_.load(std::memory_order_acquire) == seen && spins < kSpinsBeforeSleep; ++spins) pause();
      if (round_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> hold(mutex_);
        ++sleeping_;
        wake_.wait(hold, [&] { return round_.load(std::memory_order_acquire) != seen; });
        --sleeping_;
      }
      if (stop_.load()) return;
      ++seen;
      task_(argument_, thread);
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int num_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int sleeping_ = 0;
  std::atomic<bool> stop_{false};
  Task task_ = nullptr;
  void* argument_ = nullptr;
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
  Counter taken_[kMaxThreads];
};

}  // namespace tbt
