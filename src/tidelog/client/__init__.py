"""What it takes to speak to a broker as its client: requests as bytes, and a blocking wire client."""
